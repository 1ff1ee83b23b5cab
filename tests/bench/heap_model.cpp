// heap_model FILE...: how much memory the extent heap needs for recorded jobs, without device, deferral or driver. One row per trace.
//
//   BF      exact best fit, lowest address, low end, in one arena: what the heap is measured against
//   low     the heap with every block cut from the low end of its hole
//   arena   the heap as it ships, one arena (what preallocate gives)
//   grow-N  the heap over regions: 2 MiB first, doubling up to N; near the capacity back to exactly what is needed;
//           wholly free regions go back before a region that does not fit is asked for
//           (ratio = smallest capacity / peak live; res = reserved / peak and calls = regions asked for, without pressure)
// Ratios come from bisection to 0.05% of the peak; peak counts blocks rounded to 512 bytes.
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"
#include "tests/bench/trace.hpp"

namespace {

using namespace cupool;
using heap::Extent;
using heap::ExtentHeap;
using heap::FitPolicy;
using heap::Region;
using trace::Trace;

constexpr std::uint64_t kBase = std::uint64_t{1} << 44;

std::uint64_t peak_bytes(const Trace& job) {
  std::vector<std::uint64_t> sizes(job.allocations);
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  for (const trace::Event& event : job.events) {
    if (!event.is_free) sizes[event.slot] = round_request(event.bytes);
    live += event.is_free ? -sizes[event.slot] : sizes[event.slot];
    peak = std::max(peak, live);
  }
  return peak;
}

/// Exact best fit over ordered sets.
class BestFit {
 public:
  explicit BestFit(std::uint64_t capacity_bytes) { add(0, capacity_bytes); }
  std::optional<std::uint64_t> allocate(std::uint64_t bytes) {
    const auto fit = by_size_.lower_bound({bytes, 0});
    if (fit == by_size_.end()) return std::nullopt;
    const auto [hole_bytes, address] = *fit;
    drop(address, hole_bytes);
    if (hole_bytes > bytes) add(address + bytes, hole_bytes - bytes);
    return address;
  }
  void free(std::uint64_t address, std::uint64_t bytes) {
    const auto next = by_address_.lower_bound(address);
    const bool joins_next = next != by_address_.end() && next->first == address + bytes;
    const auto previous = next == by_address_.begin() ? by_address_.end() : std::prev(next);
    const bool joins_previous = previous != by_address_.end() && previous->first + previous->second == address;
    const auto after = joins_next ? *next : std::pair<const std::uint64_t, std::uint64_t>{0, 0};
    const auto before = joins_previous ? *previous : std::pair<const std::uint64_t, std::uint64_t>{0, 0};
    if (joins_next) drop(after.first, after.second);
    if (joins_previous) drop(before.first, before.second);
    add(joins_previous ? before.first : address, before.second + bytes + after.second);
  }

 private:
  void add(std::uint64_t address, std::uint64_t bytes) {
    by_address_.emplace(address, bytes);
    by_size_.emplace(bytes, address);
  }
  void drop(std::uint64_t address, std::uint64_t bytes) {
    by_address_.erase(address);
    by_size_.erase({bytes, address});
  }
  std::map<std::uint64_t, std::uint64_t> by_address_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
};

bool best_fit_completes(const Trace& job, std::uint64_t capacity_bytes) {
  BestFit heap(capacity_bytes);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks(job.allocations);
  for (const trace::Event& event : job.events) {
    auto& [address, bytes] = blocks[event.slot];
    if (event.is_free) {
      heap.free(address, bytes);
      continue;
    }
    bytes = round_request(event.bytes);
    const auto found = heap.allocate(bytes);
    if (!found) return false;
    address = *found;
  }
  return true;
}

bool arena_completes(const Trace& job, std::uint64_t capacity_bytes, const FitPolicy& policy) {
  ExtentHeap heap(policy);
  heap.add_region(kBase, capacity_bytes, nullptr);
  std::vector<Extent*> blocks(job.allocations);
  for (const trace::Event& event : job.events) {
    Extent*& block = blocks[event.slot];
    if (event.is_free) {
      heap.free(block);
    } else if (block = heap.allocate(event.bytes); block == nullptr) {
      return false;
    }
  }
  return true;
}

/// The heap over regions that double, on a device of `capacity_bytes`.
class GrowingPool {
 public:
  GrowingPool(std::uint64_t capacity_bytes, std::uint64_t cap_bytes) : capacity_bytes_(capacity_bytes), cap_bytes_(cap_bytes) {}

  Extent* allocate(std::uint64_t bytes) {
    if (Extent* extent = heap_.allocate(bytes); extent != nullptr) return extent;
    const std::uint64_t need = align_up(round_request(bytes), kRegionGranularity_bytes);
    if (!grow(need)) {
      trim();
      if (!grow(need)) return nullptr;
    }
    return heap_.allocate(bytes);
  }
  void free(Extent* extent) { heap_.free(extent); }
  std::uint64_t most_reserved_bytes() const { return most_reserved_bytes_; }
  std::uint64_t calls() const { return calls_; }

 private:
  bool grow(std::uint64_t need) {
    std::uint64_t want = std::max(next_bytes_, need);
    const std::uint64_t left = capacity_bytes_ - heap_.region_bytes();
    while (want > left && want > need) want = std::max(need, align_up(want / 2, kRegionGranularity_bytes));
    if (want > left) return false;
    heap_.add_region(next_address_, want, nullptr);
    next_address_ += want + kRegionGranularity_bytes;
    next_bytes_ = std::min(next_bytes_ * 2, cap_bytes_);
    most_reserved_bytes_ = std::max(most_reserved_bytes_, heap_.region_bytes());
    ++calls_;
    return true;
  }
  void trim() {
    std::vector<Region*> empty;
    heap_.for_each_region([&](const Region& region) {
      if (region.free_bytes == region.bytes) empty.push_back(heap_.find_region(region.address));
    });
    for (Region* region : empty) heap_.remove_region(region);
  }

  ExtentHeap heap_;
  std::uint64_t capacity_bytes_;
  std::uint64_t cap_bytes_;
  std::uint64_t next_bytes_ = kRegionGranularity_bytes;
  std::uint64_t next_address_ = kBase;
  std::uint64_t most_reserved_bytes_ = 0;
  std::uint64_t calls_ = 0;
};

bool replay(const Trace& job, GrowingPool* pool) {
  std::vector<Extent*> blocks(job.allocations);
  for (const trace::Event& event : job.events) {
    Extent*& block = blocks[event.slot];
    if (event.is_free) {
      pool->free(block);
    } else if (block = pool->allocate(event.bytes); block == nullptr) {
      return false;
    }
  }
  return true;
}

template <class Completes> double smallest_ratio(std::uint64_t peak, Completes&& completes) {
  std::uint64_t low = peak / kBlockAlignment_bytes;
  std::uint64_t high = low * 4;
  if (completes(low * kBlockAlignment_bytes)) return 1.0;
  const std::uint64_t tolerance = std::max<std::uint64_t>(1, low / 2000);
  while (high - low > tolerance) {
    const std::uint64_t middle = (low + high) / 2;
    (completes(middle * kBlockAlignment_bytes) ? high : low) = middle;
  }
  return static_cast<double>(high * kBlockAlignment_bytes) / static_cast<double>(peak);
}

constexpr std::uint64_t kCaps_bytes[] = {64 * kMiB, 512 * kMiB, std::uint64_t{1} << 60};

void print_row(const std::string& name, const Trace& job) {
  const std::uint64_t peak = peak_bytes(job);
  FitPolicy low;
  low.beside_older_from_bytes = FitPolicy::kNever;
  std::printf("%-38s %6.3f", name.c_str(), smallest_ratio(peak, [&](std::uint64_t bytes) { return best_fit_completes(job, bytes); }));
  for (const FitPolicy& policy : {low, FitPolicy{}}) {
    std::printf(" %6.3f", smallest_ratio(peak, [&](std::uint64_t bytes) { return arena_completes(job, bytes, policy); }));
  }
  for (const std::uint64_t cap : kCaps_bytes) {
    const double ratio = smallest_ratio(peak, [&](std::uint64_t bytes) {
      GrowingPool pool(bytes, cap);
      return replay(job, &pool);
    });
    GrowingPool roomy(std::uint64_t{1} << 50, cap);
    replay(job, &roomy);
    std::printf("  %6.3f %6.3f %6" PRIu64, ratio, static_cast<double>(roomy.most_reserved_bytes()) / static_cast<double>(peak), roomy.calls());
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: heap_model TRACE.gz...\n");
    return 2;
  }
  std::printf("%-38s %6s %6s %6s  %6s %6s %6s  %6s %6s %6s  %6s %6s %6s\n", "trace", "BF", "low", "arena", "g-64M", "res", "calls", "g-512M", "res",
              "calls", "grow", "res", "calls");
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string path = argv[i];
      const std::string file = path.substr(path.rfind('/') + 1);
      print_row(file.substr(0, file.rfind(".trace")), trace::load(path));
    }
  } catch (const trace::BadTrace& bad) {
    std::fprintf(stderr, "heap_model: %s\n", bad.what());
    return 1;
  }
}
