// Extent and Region: the boundary tags of the heap, kept on the host because device memory cannot be touched.
//
// Plain records without behaviour. The heap owns the links and the geometry. Fields marked "owner's" are for the heap's owner, the device pool: the
// heap never reads them. The first 64 bytes of an Extent are all that allocate and free look at, and each extent has a copy of whether its neighbours
// are free, so that a free between two live blocks reads no other extent.
#pragma once

#include <atomic>
#include <cstdint>

namespace cupool::heap {

enum class ExtentState : std::uint8_t {
  free,
  live,
  deferred,
  absent,  ///< addresses without memory: in no bin and no sum. The owner decides when they get memory
  cached   ///< a block like a live one to the heap, but no program has it: the owner keeps it for the next allocation of its size
};

/// The state of an extent. The owner may turn a block from live to cached and back without the lock that protects the heap; all other changes are
/// made under it.
class SharedState {
 public:
  SharedState(ExtentState state = ExtentState::free) : state_(state) {}
  SharedState(const SharedState& other) : state_(other) {}
  SharedState& operator=(const SharedState& other) { return *this = static_cast<ExtentState>(other); }
  SharedState& operator=(ExtentState state) {
    state_.store(state, std::memory_order_release);  // whoever reads the state sees what was written before
    return *this;
  }
  operator ExtentState() const { return state_.load(std::memory_order_acquire); }
  /// From `from` to `to`. False, with nothing changed, when the state is not `from`: of two threads that try, one succeeds.
  bool change(ExtentState from, ExtentState to) { return state_.compare_exchange_strong(from, to, std::memory_order_acq_rel); }

 private:
  std::atomic<ExtentState> state_;
};

struct Region;

/// A run of bytes in one region: a free hole, a live block, a block whose free waits for the GPU, or addresses with no memory behind them.
/// It fills a pair of cache lines, because processors fetch lines in pairs and threads use the extents of neighbouring blocks at the same time.
struct alignas(128) Extent {
  // What a thread needs to take the block out of its magazine or to put it back: one cache line.
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;            ///< multiple of kBlockAlignment_bytes
  Extent* bin_next = nullptr;         ///< free: the bin's list; deferred, absent, cached: the owner's lists; spare: the arena's list
  std::uint64_t requested_bytes = 0;  ///< owner's
  std::uint64_t buffer_id = 0;        ///< owner's
  union {
    std::uint64_t allocated_ticks = 0;  ///< owner's
    std::uint64_t whole_bytes;          ///< free, lane 0: what of it is in the sum ExtentHeap::whole_bytes()
  };
  Region* region = nullptr;
  union {
    std::uint32_t site = 0;  ///< live, deferred: owner's
    std::uint32_t lane;      ///< free: who may use it (ExtentHeap); 0: everybody
  };
  SharedState state = ExtentState::free;
  std::uint8_t flags = 0;             ///< owner's; 0 on return of allocate
  bool previous_is_free : 1 = false;  ///< a copy of previous->state == free; likewise the next
  bool next_is_free : 1 = false;
  bool is_in_table = false;  ///< owner's: the block is in a BlockTable; false for a hole

  // What only the heap needs.
  Extent* previous = nullptr;  ///< neighbour by address in the same region
  Extent* next = nullptr;
  union {
    Extent* bin_previous = nullptr;  ///< as bin_next, for free, deferred and absent ones
    std::uint64_t birth;             ///< live: the heap's count of allocations when this one was made
  };
  std::uint8_t keeper = 0;  ///< whose page of the ExtentArena this extent lies in
};
static_assert(sizeof(Extent) == 128, "a pair of cache lines; the metadata budget of 0.1% counts on it");

/// One contiguous range that came from the driver as a whole and goes back as a whole.
struct Region {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  Extent* first = nullptr;
  std::uint64_t free_bytes = 0;  ///< Σ free extents
  std::uint64_t lane_bytes = 0;  ///< Σ free extents of lanes above 0
  std::uint32_t index = 0;       ///< stable while the region lives; reused afterwards
  std::uint8_t zone = 0;         ///< ExtentHeap: among whose holes those of this region are
  void* owner = nullptr;         ///< owner's
};

}  // namespace cupool::heap
