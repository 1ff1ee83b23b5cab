// libFuzzer entry: bytes become operations on an extent heap and its lanes. What each one did is compared with a model: for
// each 512 bytes, whether they are free and who alone may have them. Every few, and at the end, all invariants are checked.
//
// Input: two bytes for the policy, then two per operation (low 4 bits: which; the rest: the lane) and two for its argument.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"

namespace {

using namespace cupool;
using namespace cupool::heap;

constexpr std::uint64_t kBase = std::uint64_t{1} << 40;
constexpr std::size_t kSlots = 4;
constexpr std::uint64_t kSlot_bytes = 4 * kMiB;
constexpr std::size_t kMost_lanes = 5;
constexpr std::size_t kSteps_per_check = 16;  // check() looks into every bin of every lane: 200 us with sanitizers

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "heap_fuzz: %s\n", what.c_str());
  std::abort();
}
void require(bool holds, const char* sentence) {
  if (!holds) fail(sentence);
}

/// Two bytes of input per number; zeros once it is used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  std::uint64_t next() {
    std::uint64_t value = 0;
    for (int i = 0; i < 2 && size_ > 0; ++i, ++data_, --size_) value = value << 8 | *data_;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

/// Who may have each 512 bytes: a lane, in which they were freed or into which they were gathered, or nobody.
class Model {
 public:
  static constexpr std::uint8_t kNobody = 0xff;  ///< a block's, or of no region
  Model() : holders_(kSlots * kSlot_bytes / kBlockAlignment_bytes, kNobody) {}

  bool all(std::uint64_t address, std::uint64_t bytes, std::uint8_t holder) const {
    const std::uint8_t* first = holders_.data() + index(address);
    return *first == holder && std::memcmp(first, first + 1, bytes / kBlockAlignment_bytes - 1) == 0;  // each is as the next
  }
  void set(std::uint64_t address, std::uint64_t bytes, std::uint8_t holder) {
    std::memset(holders_.data() + index(address), holder, bytes / kBlockAlignment_bytes);
  }

 private:
  static std::size_t index(std::uint64_t address) { return (address - kBase) / kBlockAlignment_bytes; }
  std::vector<std::uint8_t> holders_;
};

/// Three pages go only together.
std::uint64_t whole_bytes(const Extent& hole) {
  constexpr std::uint64_t kWhole = 3 * 65536;
  const std::uint64_t first = (hole.address + kWhole - 1) / kWhole;
  const std::uint64_t last = (hole.address + hole.bytes) / kWhole;
  return last > first ? (last - first) * kWhole : 0;
}

class Machine {
 public:
  explicit Machine(const FitPolicy& policy) : heap_(policy, 1, policy.page_bytes != 0 ? &whole_bytes : nullptr) {}

  void step(std::uint64_t code, std::uint64_t argument) {
    const std::uint32_t lane = lane_of(code / 16);
    switch (code % 16) {
      case 0: toggle_region(argument % kSlots, argument / kSlots % 2 == 1); break;
      case 1: allocate(argument + 1, lane); break;
      case 2: allocate((argument + 1) * 64, lane); break;
      case 3: allocate((argument % 64 + 1) * 512, lane); break;
      case 4: defer(argument); break;
      case 5: look(kBase + argument * 256); break;
      case 8: add_lane(); break;
      case 9: drain(lane, argument % 2 == 1); break;
      case 10: remove(lane); break;
      case 11:
      case 12: gather((argument + 1) * 64, lane); break;
      default: release(argument, lane); break;
    }
    if (++steps_ % kSteps_per_check == 0) check();
  }

  /// Everything goes back: nothing is left but one hole in each region.
  void finish() {
    while (!lanes_.empty()) drain(lanes_.back(), true);
    while (!blocks_.empty()) release(0, 0);
    require(heap_.free_bytes() == heap_.region_bytes() && heap_.wholly_free_bytes() == heap_.region_bytes(), "freed bytes are not free");
    require(heap_.extent_count() == heap_.region_count(), "holes of everybody's lie beside each other");
    check();
  }

 private:
  std::uint32_t lane_of(std::uint64_t number) const {
    const std::size_t index = number % (lanes_.size() + 1);
    return index == 0 ? 0 : lanes_[index - 1];
  }

  void check() const {
    if (const std::string broken = heap_.check(); !broken.empty()) fail(broken);
  }

  void check_hole(const Extent& hole, std::uint32_t lane) const {
    require(hole.state == ExtentState::free && hole.lane == lane, "a hole is in another lane than it was put into");
    require(model_.all(hole.address, hole.bytes, static_cast<std::uint8_t>(lane)), "a hole has what is another lane's, or a block's");
  }

  void toggle_region(std::size_t slot, bool only_if_free) {
    Region*& region = regions_[slot];
    const std::uint64_t address = kBase + slot * kSlot_bytes;
    if (region == nullptr) {
      region = heap_.add_region(address, kSlot_bytes, nullptr);
      model_.set(address, kSlot_bytes, 0);
      return;
    }
    const bool is_free = model_.all(address, kSlot_bytes, 0);
    require(ExtentHeap::is_wholly_free(*region) == is_free, "a region is wholly free when all of it is everybody's, or the reverse");
    if (only_if_free && !is_free) return;
    if (only_if_free) {
      heap_.remove_region(region);
    } else {
      heap_.abandon_region(region,
                           [&](Extent& extent) { require(blocks_.erase(extent.address) == 1, "an abandoned region names a block that nobody has"); });
    }
    region = nullptr;
    model_.set(address, kSlot_bytes, Model::kNobody);
  }

  std::uint64_t largest_hole(std::uint32_t lane) const {
    std::uint64_t largest_bytes = 0;
    heap_.for_each_region([&](const Region& region) {
      heap_.for_each_extent(region, [&](const Extent& extent) {
        if (extent.state == ExtentState::free && extent.lane == lane) largest_bytes = std::max(largest_bytes, extent.bytes);
      });
    });
    return largest_bytes;
  }

  void allocate(std::uint64_t bytes, std::uint32_t lane) {
    const std::uint64_t need = round_request(bytes);
    const bool from_lane = lane != 0 && largest_hole(lane) >= need;
    const bool from_all = largest_hole(0) >= need;
    const bool fits = from_lane || from_all;
    Extent* extent = heap_.allocate(bytes, lane);
    require((extent != nullptr) == fits, "a request that fits was refused, or the reverse");
    if (extent == nullptr) return;
    require(extent->bytes == need && extent->state == ExtentState::live, "a block is not what was asked for");
    const bool is_own = from_lane && model_.all(extent->address, need, static_cast<std::uint8_t>(lane));
    require(is_own || (from_all && model_.all(extent->address, need, 0)), "a block has what is another lane's or another block's");
    model_.set(extent->address, need, Model::kNobody);
    require(blocks_.emplace(extent->address, extent).second, "an address was handed out twice");
  }

  std::map<std::uint64_t, Extent*>::iterator draw(std::uint64_t argument) {
    const auto at = blocks_.lower_bound(kBase + argument * 256);
    return at == blocks_.end() ? blocks_.begin() : at;
  }
  void defer(std::uint64_t argument) {
    if (const auto at = draw(argument); at != blocks_.end()) heap_.defer(at->second);
  }
  void release(std::uint64_t argument, std::uint32_t lane) {
    const auto at = draw(argument);
    if (at == blocks_.end()) return;
    require(heap_.find(at->first) == at->second, "a block is not found by its base");
    Extent* block = at->second;
    blocks_.erase(at);
    model_.set(block->address, block->bytes, static_cast<std::uint8_t>(lane));
    for (const Extent* beside : {block->previous, block->next}) {  // everybody's, and no larger: it joins the lane
      const bool joins = lane != 0 && beside != nullptr && beside->state == ExtentState::free && beside->lane == 0 && beside->bytes <= block->bytes;
      if (joins) model_.set(beside->address, beside->bytes, static_cast<std::uint8_t>(lane));
    }
    check_hole(*heap_.free(block, lane), lane);
  }
  void look(std::uint64_t address) {
    const Extent* extent = heap_.find_containing(address);
    require((extent == nullptr) == (heap_.find_region(address) == nullptr), "an address in a region has no extent, or the reverse");
    require(extent == nullptr || address - extent->address < extent->bytes, "the extent found does not contain the address");
  }

  void add_lane() {
    if (lanes_.size() == kMost_lanes) return;
    const std::uint32_t lane = heap_.add_lane();
    require(lane != 0 && std::find(lanes_.begin(), lanes_.end(), lane) == lanes_.end(), "a lane was handed out twice");
    require(heap_.lane_bytes(lane) == 0, "a new lane has a hole");
    lanes_.push_back(lane);
  }

  void remove(std::uint32_t lane) {
    if (lane == 0 || heap_.lane_bytes(lane) != 0) return;
    require(largest_hole(lane) == 0, "a lane without bytes has a hole");
    heap_.remove_lane(lane);
    lanes_.erase(std::find(lanes_.begin(), lanes_.end(), lane));
  }

  void drain(std::uint32_t lane, bool and_remove) {
    if (lane == 0) return;
    std::uint64_t left_bytes = heap_.lane_bytes(lane);
    heap_.drain_lane(lane, [&](Extent* extent) {
      require(extent->state == ExtentState::deferred, "what is drained is not deferred");
      require(model_.all(extent->address, extent->bytes, static_cast<std::uint8_t>(lane)), "a lane is drained of what is not its own");
      model_.set(extent->address, extent->bytes, Model::kNobody);
      require(blocks_.emplace(extent->address, extent).second, "what is drained was a block");
      left_bytes -= extent->bytes;
    });
    require(left_bytes == 0 && heap_.lane_bytes(lane) == 0, "a drained lane holds something");
    if (and_remove) remove(lane);
  }

  /// The longest run of neighbouring holes of `lane` and lane 0 that has one of `lane`.
  std::uint64_t largest_run(std::uint32_t lane) const {
    std::uint64_t largest_bytes = 0;
    heap_.for_each_region([&](const Region& region) {
      std::uint64_t run_bytes = 0;
      bool has_one = false;
      heap_.for_each_extent(region, [&](const Extent& extent) {
        const bool usable = extent.state == ExtentState::free && (extent.lane == lane || extent.lane == 0);
        run_bytes = usable ? run_bytes + extent.bytes : 0;
        has_one = usable && (has_one || extent.lane == lane);
        if (has_one) largest_bytes = std::max(largest_bytes, run_bytes);
      });
    });
    return largest_bytes;
  }

  void gather(std::uint64_t bytes, std::uint32_t lane) {
    if (lane == 0) return;
    const std::uint64_t before_bytes = heap_.lane_bytes(lane);
    const bool possible = largest_run(lane) >= round_request(bytes);
    require(heap_.gather(lane, bytes) == possible, "what can be gathered was not, or the reverse");
    require(possible || heap_.lane_bytes(lane) == before_bytes, "a lane took what did not help it");
    if (!possible) return;
    require(largest_hole(lane) >= round_request(bytes), "what was gathered is not one hole");
    heap_.for_each_region([&](const Region& region) {
      heap_.for_each_extent(region, [&](const Extent& extent) {
        if (extent.state == ExtentState::free && extent.lane == lane) take_over(extent);
      });
    });
  }
  /// A hole that may have been gathered: what was everybody's is its lane's from now on.
  void take_over(const Extent& hole) {
    const auto lane = static_cast<std::uint8_t>(hole.lane);
    for (std::uint64_t at = hole.address; at < hole.address + hole.bytes; at += kBlockAlignment_bytes) {
      if (model_.all(at, kBlockAlignment_bytes, lane)) continue;
      require(model_.all(at, kBlockAlignment_bytes, 0), "a lane gathered what is another lane's, or a block's");
      model_.set(at, kBlockAlignment_bytes, lane);
    }
  }

  ExtentHeap heap_;
  Region* regions_[kSlots] = {};
  std::map<std::uint64_t, Extent*> blocks_;  ///< live and deferred, by address
  std::vector<std::uint32_t> lanes_;
  Model model_;
  std::size_t steps_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size < 8192 ? size : 8192);
  FitPolicy policy;
  const std::uint64_t head = input.next();
  policy.candidates = 1 + static_cast<unsigned>(head % 8);
  policy.beside_older_from_bytes = (head >> 3) % 3 == 0 ? policy.beside_older_from_bytes : (head >> 3) % 3 == 1 ? 0 : FitPolicy::kNever;
  if ((head >> 6) % 2 != 0) {
    policy.small_below_bytes = 4096;
    policy.page_bytes = 65536;
    policy.wide_bytes = 1 << 20;
  }
  Machine machine(policy);
  machine.step(0, 0);
  while (!input.empty()) {
    const std::uint64_t code = input.next();
    machine.step(code, input.next());
  }
  machine.finish();
  return 0;
}
