// Extent and Region: the boundary tags of the heap, kept on the host because device memory cannot be touched.
//
// Plain records without behaviour. The heap owns the links and the geometry; the owner's fields are for the device
// pool and the heap never reads them. The first 64 bytes of an Extent are all that allocate and free look at, and
// each extent carries its neighbours' free bits, so that a free between two live blocks reads no other extent.
#pragma once

#include <atomic>
#include <cstdint>

namespace cupool::heap {

enum class ExtentState : std::uint8_t {
  free,
  live,
  deferred,
  absent,  ///< addresses without memory: in no bin and no sum, and the owner's until memory is there
  cached   ///< to the heap a block like a live one, but nobody's: the owner keeps it for the next allocation of its size
};

/// The state of an extent. The owner may turn a block from live to cached and back without the heap's lock; all else is under it.
class SharedState {
 public:
  SharedState(ExtentState state = ExtentState::free) : state_(state) {}
  SharedState(const SharedState& other) : state_(other) {}
  SharedState& operator=(const SharedState& other) { return *this = static_cast<ExtentState>(other); }
  SharedState& operator=(ExtentState state) {
    state_.store(state, std::memory_order_release);  // what was written before is seen by whoever reads it
    return *this;
  }
  operator ExtentState() const { return state_.load(std::memory_order_acquire); }
  /// False, with nothing changed, when it is not `from`: of two threads that try, one succeeds.
  bool change(ExtentState from, ExtentState to) { return state_.compare_exchange_strong(from, to, std::memory_order_acq_rel); }

 private:
  std::atomic<ExtentState> state_;
};

struct Region;

/// A run of bytes in one region: a free hole, a live block, a block whose free waits for the GPU, or addresses with nothing behind.
/// In a pair of cache lines of its own, because processors fetch such pairs: threads touch the extents of neighbouring blocks at the same time.
struct alignas(128) Extent {
  // What a thread needs that takes the block from its magazine or gives it back: one line.
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;            ///< multiple of kBlockAlignment_bytes
  Extent* bin_next = nullptr;         ///< free: bin list; deferred, absent: the owner's list; cached: the owner's list; spare: the arena's list
  std::uint64_t requested_bytes = 0;  ///< owner's
  std::uint64_t buffer_id = 0;        ///< owner's
  union {
    std::uint64_t allocated_ticks = 0;  ///< owner's
    std::uint64_t whole_bytes;          ///< free, lane 0: what ExtentHeap counted of it in whole_bytes()
  };
  Region* region = nullptr;
  union {
    std::uint32_t site = 0;  ///< live, deferred: owner's
    std::uint32_t lane;      ///< free: who may use it; 0 is everybody
  };
  SharedState state = ExtentState::free;
  std::uint8_t flags = 0;             ///< owner's; 0 on return of allocate
  bool previous_is_free : 1 = false;  ///< the heap's copy of previous->state == free
  bool next_is_free : 1 = false;
  bool is_in_table = false;  ///< owner's, false for a hole: the block is in a BlockTable

  // What the heap needs besides.
  Extent* previous = nullptr;  ///< neighbour by address in the same region
  Extent* next = nullptr;
  union {
    Extent* bin_previous = nullptr;  ///< as bin_next, but cached, spare
    std::uint64_t birth;             ///< live: the heap's count of allocations when this one was made
  };
  std::uint8_t keeper = 0;  ///< the arena's: whose page this extent lies in
};
static_assert(sizeof(Extent) == 128, "the metadata budget of 0.1% counts on it");

/// One contiguous range that came from the driver as a whole and goes back as a whole.
struct Region {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  Extent* first = nullptr;
  std::uint64_t free_bytes = 0;  ///< Σ free extents
  std::uint64_t lane_bytes = 0;  ///< Σ free extents of lanes above 0; wholly free: free_bytes == bytes, and none of these
  std::uint32_t index = 0;       ///< stable while the region lives; reused afterwards
  std::uint8_t zone = 0;         ///< whose holes its holes are among
  void* owner = nullptr;         ///< the device pool's
};

}  // namespace cupool::heap
