// The extent heap against a naive model: a std::map of every extent by address, joined and searched the slow way.
// Seeds are fixed; a failure prints the seed and the step.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"

using namespace cupool;
using namespace cupool::heap;

namespace {

constexpr std::uint64_t kBase = std::uint64_t{3} << 40;
constexpr std::uint64_t kSlot_bytes = 8 * kMiB;  ///< regions fill their slot, so that they touch
constexpr std::size_t kSlots = 6;

struct Row {
  std::uint64_t bytes;
  std::size_t slot;
  ExtentState state;
};

struct Model {
  std::map<std::uint64_t, Row> rows;

  void join(std::map<std::uint64_t, Row>::iterator at) {
    at->second.state = ExtentState::free;
    if (auto next = std::next(at); next != rows.end() && next->second.state == ExtentState::free && next->second.slot == at->second.slot) {
      at->second.bytes += next->second.bytes;
      rows.erase(next);
    }
    if (at == rows.begin()) return;
    if (auto previous = std::prev(at); previous->second.state == ExtentState::free && previous->second.slot == at->second.slot) {
      previous->second.bytes += at->second.bytes;
      rows.erase(at);
    }
  }
  std::uint64_t largest() const {
    std::uint64_t bytes = 0;
    for (const auto& [address, row] : rows) {
      if (row.state == ExtentState::free) bytes = std::max(bytes, row.bytes);
    }
    return bytes;
  }
  /// The block must lie in one hole; cuts it out.
  bool carve(std::uint64_t address, std::uint64_t bytes) {
    auto at = rows.upper_bound(address);
    if (at == rows.begin()) return false;
    --at;
    const std::uint64_t hole = at->first;
    const Row row = at->second;
    if (row.state != ExtentState::free || address + bytes > hole + row.bytes) return false;
    rows.erase(at);
    if (address > hole) rows[hole] = {address - hole, row.slot, ExtentState::free};
    if (address + bytes < hole + row.bytes) rows[address + bytes] = {hole + row.bytes - address - bytes, row.slot, ExtentState::free};
    rows[address] = {bytes, row.slot, ExtentState::live};
    return true;
  }
};

/// Three of the largest pages that apart() has go only together.
std::uint64_t whole_bytes(const Extent& hole) {
  constexpr std::uint64_t kWhole = 3 * 128 * kKiB;
  const std::uint64_t first = (hole.address + kWhole - 1) / kWhole;
  const std::uint64_t last = (hole.address + hole.bytes) / kWhole;
  return last > first ? (last - first) * kWhole : 0;
}

class Run {
 public:
  Run(std::uint64_t seed, FitPolicy policy, unsigned small_bits)
      : random_(seed),
        heap_(policy, 1, policy.page_bytes != 0 ? &whole_bytes : nullptr),
        has_pages_(policy.page_bytes != 0),
        small_bits_(small_bits) {}

  void step() {
    const auto dice = random_() % 100;
    if (dice < 2) return toggle_region();
    if (dice < 50) return allocate();
    if (dice < 60) return defer();
    if (dice < 65) return rehome();
    if (dice < 92) return release();
    look();
  }
  std::string check() const { return heap_.check(); }

  /// Walks heap and model side by side.
  void compare() const {
    auto row = model_.rows.begin();
    std::uint64_t free_bytes = 0;
    std::uint64_t whole = 0;
    heap_.for_each_region([&](const Region& region) {
      heap_.for_each_extent(region, [&](const Extent& extent) {
        REQUIRE(row != model_.rows.end());
        REQUIRE(extent.address == row->first);
        REQUIRE(extent.bytes == row->second.bytes);
        REQUIRE(extent.state == row->second.state);
        if (extent.state == ExtentState::free) free_bytes += extent.bytes;
        if (extent.state == ExtentState::free && has_pages_) whole += whole_bytes(extent);
        ++row;
      });
    });
    REQUIRE(row == model_.rows.end());
    REQUIRE(heap_.free_bytes() == free_bytes);
    REQUIRE(heap_.whole_bytes() == whole);
    REQUIRE(heap_.largest_free_bytes() == model_.largest());
  }

 private:
  void toggle_region() {
    const std::size_t slot = random_() % kSlots;
    const std::uint64_t address = kBase + slot * kSlot_bytes;
    if (regions_[slot] == nullptr) {
      const std::uint64_t bytes = random_() % 2 == 0 ? kSlot_bytes : kSlot_bytes - 512 * (random_() % 5000);
      regions_[slot] = heap_.add_region(address, bytes, nullptr);
      model_.rows[address] = {bytes, slot, ExtentState::free};
      return;
    }
    if (regions_[slot]->free_bytes == regions_[slot]->bytes) {
      heap_.remove_region(regions_[slot]);
    } else if (random_() % 8 == 0) {
      heap_.abandon_region(regions_[slot], [&](Extent& extent) { forget(extent.address); });
    } else {
      return;
    }
    regions_[slot] = nullptr;
    model_.rows.erase(model_.rows.lower_bound(address), model_.rows.lower_bound(address + kSlot_bytes));
  }

  void allocate() {
    const std::uint64_t bytes = 1 + random_() % (std::uint64_t{1} << (random_() % 8 == 0 ? 22 : 1 + random_() % small_bits_));
    const std::uint64_t need = round_request(bytes);
    const std::uint8_t keeper = draw_keeper();
    Extent* extent = heap_.allocate(bytes, 0, keeper);
    if (extent == nullptr) {
      REQUIRE(model_.largest() < need);
      return;
    }
    REQUIRE((keeper == 0 || extent->keeper == keeper));
    REQUIRE(extent->bytes == need);
    REQUIRE(model_.carve(extent->address, need));
    bases_.push_back(extent->address);
  }

  std::uint64_t* draw() { return bases_.empty() ? nullptr : &bases_[random_() % bases_.size()]; }

  void defer() {
    const std::uint64_t* base = draw();
    if (base == nullptr) return;
    Extent* extent = heap_.find(*base);
    REQUIRE(extent != nullptr);
    heap_.defer(extent);
    model_.rows.at(*base).state = ExtentState::deferred;
  }

  void rehome() {
    const std::uint64_t* base = draw();
    if (base == nullptr) return;
    const Extent before = *heap_.find(*base);
    const std::uint8_t keeper = draw_keeper();
    Extent* after = heap_.rehome(heap_.find(*base), keeper);
    REQUIRE(after->keeper == keeper);
    REQUIRE(heap_.find(*base) == after);
    REQUIRE(after->bytes == before.bytes);
    REQUIRE(after->birth == before.birth);
  }

  std::uint8_t draw_keeper() { return static_cast<std::uint8_t>(random_() % 4); }

  void release() {
    std::uint64_t* base = draw();
    if (base == nullptr) return;
    Extent* extent = heap_.find(*base);
    REQUIRE(extent != nullptr);
    REQUIRE(extent->address == *base);
    model_.join(model_.rows.find(*base));
    const Extent* hole = heap_.free(extent);
    REQUIRE(hole->address <= *base);
    REQUIRE(hole->state == ExtentState::free);
    *base = bases_.back();
    bases_.pop_back();
  }

  void look() const {
    const std::uint64_t address = kBase - 4096 + random_() % (kSlots * kSlot_bytes + 8192);
    const Extent* extent = heap_.find_containing(address);
    auto row = model_.rows.upper_bound(address);
    const bool known = row != model_.rows.begin() && address - std::prev(row)->first < std::prev(row)->second.bytes;
    REQUIRE((extent != nullptr) == known);
    if (known) REQUIRE(extent->address == std::prev(row)->first);
    const auto exact = model_.rows.find(address & ~std::uint64_t{511});
    const bool is_block = exact != model_.rows.end() && exact->second.state != ExtentState::free;
    REQUIRE((heap_.find(address & ~std::uint64_t{511}) != nullptr) == is_block);
  }

  void forget(std::uint64_t base) {
    const auto at = std::find(bases_.begin(), bases_.end(), base);
    REQUIRE(at != bases_.end());
    *at = bases_.back();
    bases_.pop_back();
  }

  mutable std::mt19937_64 random_;
  ExtentHeap heap_;
  bool has_pages_;
  unsigned small_bits_;
  Model model_;
  std::vector<std::uint64_t> bases_;
  std::vector<Region*> regions_ = std::vector<Region*>(kSlots);
};

void run(std::uint64_t seed, unsigned small_bits, FitPolicy policy, int steps, int check_every) {
  Run run(seed, policy, small_bits);
  for (int step = 0; step < steps; ++step) {
    INFO("seed " << seed << " step " << step);
    run.step();
    if (step % check_every != 0) continue;
    REQUIRE(run.check() == "");
    run.compare();
  }
}

/// Small blocks and large ones on pages of their own.
void apart(FitPolicy& policy, std::uint64_t seed) {
  policy.small_below_bytes = kKiB << (seed % 5);
  policy.page_bytes = 16 * kKiB << (seed % 4);
  policy.wide_bytes = 4 * policy.page_bytes;
}

}  // namespace

TEST_CASE("any sequence of operations keeps every invariant, checked after each step") {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    FitPolicy policy;
    policy.candidates = 1 + static_cast<unsigned>(seed % 8);
    policy.beside_older_from_bytes = seed % 3 == 0 ? FitPolicy::kNever : seed % 3 == 1 ? 0 : 16 * kKiB;
    if (seed % 2 == 0) apart(policy, seed);
    run(seed, 8 + static_cast<unsigned>(seed % 14), policy, 600, 1);
  }
}

TEST_CASE("long runs stay equal to the model") {
  // Small sizes fill pages with hundreds of starts, large ones leave most pages without any.
  for (const unsigned small_bits : {10U, 13U, 17U, 21U}) {
    FitPolicy policy;
    if (small_bits % 4 == 1) apart(policy, small_bits);
    run(100 + small_bits, small_bits, policy, 150'000, 10'000);
  }
}

TEST_CASE("a million steps with the geometry alone, invariants at intervals") {
  std::mt19937_64 random(5);
  ExtentHeap heap;
  heap.add_region(kBase, 4 * kGiB, nullptr);
  heap.add_region(kBase + 4 * kGiB, 4 * kGiB, nullptr);
  std::vector<std::uint64_t> bases;
  for (int step = 0; step < 2'000'000; ++step) {
    const bool grows = (step / 250'000) % 2 == 0;
    if (bases.empty() || random() % 100 < (grows ? 60U : 40U)) {
      Extent* extent = heap.allocate(1 + random() % (std::uint64_t{1} << (4 + random() % 18)));
      if (extent != nullptr) bases.push_back(extent->address);
    } else {
      std::uint64_t& base = bases[random() % bases.size()];
      heap.free(heap.find(base));
      base = bases.back();
      bases.pop_back();
    }
    if (step % 250'000 == 0) REQUIRE(heap.check() == "");
  }
  for (const std::uint64_t base : bases) heap.free(heap.find(base));
  REQUIRE(heap.check() == "");
  CHECK(heap.wholly_free_bytes() == 8 * kGiB);
  CHECK(heap.extent_count() == 2);
}
