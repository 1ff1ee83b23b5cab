// libFuzzer entry: bytes become operations on an extent heap; every invariant is checked after each one, and what
// is found is compared with what was handed out. Links: cupool_pool.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "heap_fuzz: %s\n", what.c_str());
  std::abort();
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

class Machine {
 public:
  explicit Machine(const FitPolicy& policy) : heap_(policy) {}

  void step(std::uint64_t code, std::uint64_t argument) {
    switch (code % 8) {
      case 0: toggle_region(argument % kSlots); break;
      case 1: allocate(argument + 1); break;
      case 2: allocate((argument + 1) * 64); break;
      case 3: allocate((argument % 64 + 1) * 512); break;
      case 4: defer(argument); break;
      case 5: look(kBase + argument * 256); break;
      default: release(argument); break;
    }
    if (const std::string broken = heap_.check(); !broken.empty()) fail(broken);
  }

 private:
  void toggle_region(std::size_t slot) {
    Region*& region = regions_[slot];
    if (region == nullptr) {
      region = heap_.add_region(kBase + slot * kSlot_bytes, kSlot_bytes, nullptr);
    } else {
      heap_.abandon_region(region, [&](Extent& extent) {
        if (blocks_.erase(extent.address) != 1) fail("an abandoned region names a block that nobody has");
      });
      region = nullptr;
    }
  }

  void allocate(std::uint64_t bytes) {
    Extent* extent = heap_.allocate(bytes);
    if (extent == nullptr) {
      if (heap_.largest_free_bytes() >= round_request(bytes)) fail("a request that fits was refused");
      return;
    }
    const auto [at, fresh] = blocks_.emplace(extent->address, extent);
    if (!fresh) fail("an address was handed out twice");
    if (at != blocks_.begin() && std::prev(at)->first + std::prev(at)->second->bytes > at->first) fail("a block overlaps the one before");
    if (std::next(at) != blocks_.end() && at->first + extent->bytes > std::next(at)->first) fail("a block overlaps the one behind");
  }

  std::map<std::uint64_t, Extent*>::iterator draw(std::uint64_t argument) {
    const auto at = blocks_.lower_bound(kBase + argument * 256);
    return at == blocks_.end() ? blocks_.begin() : at;
  }
  void defer(std::uint64_t argument) {
    if (const auto at = draw(argument); at != blocks_.end()) heap_.defer(at->second);
  }
  void release(std::uint64_t argument) {
    const auto at = draw(argument);
    if (at == blocks_.end()) return;
    if (heap_.find(at->first) != at->second) fail("a block is not found by its base");
    heap_.free(at->second);
    blocks_.erase(at);
  }
  void look(std::uint64_t address) {
    const Extent* extent = heap_.find_containing(address);
    if ((extent == nullptr) != (heap_.find_region(address) == nullptr)) fail("an address in a region has no extent, or the reverse");
    if (extent != nullptr && address - extent->address >= extent->bytes) fail("the extent found does not contain the address");
  }

  ExtentHeap heap_;
  Region* regions_[kSlots] = {};
  std::map<std::uint64_t, Extent*> blocks_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size < 8192 ? size : 8192);
  FitPolicy policy;
  const std::uint64_t head = input.next();
  policy.candidates = 1 + static_cast<unsigned>(head % 8);
  policy.beside_older_from_bytes = (head >> 3) % 3 == 0 ? policy.beside_older_from_bytes : (head >> 3) % 3 == 1 ? 0 : FitPolicy::kNever;
  Machine machine(policy);
  machine.step(0, 0);
  while (!input.empty()) {
    const std::uint64_t code = input.next();
    machine.step(code, input.next());
  }
  return 0;
}
