// NativeBlocks: blocks that are allocations of the driver, each by a call of its own (block_source.hpp), and are booked like any other.
//
// It serves the policies `platform` and `async`, CUPOOL_IPC=native (blocks that processes without cupool can open) and the ladder's last rung. A free
// is the driver's own call: cuMemFree synchronises as natively. One tree node per block: each costs a driver call anyway, and neighbours in the
// address space are not ours to join.
// Thread rule: as DeviceAllocator; the device's lock.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "pool/device/block_source.hpp"
#include "pool/device/device_allocator.hpp"

namespace cupool::device {

class NativeBlocks final : public DeviceAllocator {
 public:
  /// How often a call pauses (kDriverCallPause_ns) for threads that are in the driver for no longer than a call: for a second at least.
  static constexpr std::uint32_t kMostPauses = 50'000;

  explicit NativeBlocks(std::unique_ptr<BlockSource> source) : source_(std::move(source)) {}

  heap::Extent* allocate(DeviceState&, const AllocationRequest&) override { return nullptr; }  // nothing is kept free
  void defer(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) override;
  /// Keeps the block for the next release(): its free waited for a capture to end.
  void recycle(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) override;
  heap::Extent* find(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) override;
  heap::Extent* find_containing(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) override;
  HeapFigures figures(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  HeapFigures survey(DeviceState& device, observe::OomEvidence& evidence) const CUPOOL_REQUIRES(device.lock) override;
  void abandon(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) override;
  bool outlive(DeviceState& device, LossVisitor& visitor, bool also_deferred) CUPOOL_REQUIRES(device.lock) override;
  /// Has the driver given out addresses of our live blocks again in the last grow()? Then those blocks were freed behind our back.
  bool has_given_again() const { return !given_again_.empty(); }
  void lose_given_again(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock);
  bool has_left() const { return !left_.empty(); }
  /// Is `address` in a block that a destroyed context has left in the driver's pool? Natively nothing is there any more, but the driver would free
  /// it.
  bool is_left(std::uint64_t address) const;
  /// Asks the driver which of the blocks that its context's end may have taken along are still in the driver's pool. Under the lock, and before
  /// anything is allocated in `by`, which is pinned and the device's only context: what is not asked about then never is.
  void ask_for_left(DeviceState& device, const ContextPool& by) CUPOOL_REQUIRES(device.lock);
  /// The driver gave `address` to the program: what lay there and may have gone with its context has gone.
  void forget_gone(CUdeviceptr address);
  /// Returns what destroyed contexts have left in the driver's pool, in the order of a living context (`by`) of the device, which is pinned.
  void free_left(DeviceState& device, ContextPool& by) CUPOOL_REQUIRES(device.lock);
  void append_map(DeviceState& device, const TickConverter& time, observe::DeviceSnapshot& out) const CUPOOL_REQUIRES(device.lock) override;
  std::string check(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  Result<Growth> grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t release(DeviceState& device, ContextPool& home, std::uint64_t wanted_bytes, bool at_most) CUPOOL_REQUIRES(device.lock) override;

  /// The driver's own free of a live block. On an error the block stays as it was; otherwise `extent` is gone. May block.
  /// `stream`: not null for a free in its order, which does not block. `is_over`: no work touches the block any more.
  Status give_back(DeviceState& device, heap::Extent* extent, const CUstream* stream = nullptr, bool is_over = false) CUPOOL_REQUIRES(device.lock);
  bool has_waiting() const { return waiting_ != 0; }
  /// Bytes that release() would return, including the driver's rounding.
  std::uint64_t waiting_bytes() const;
  BlockSource& source() { return *source_; }
  /// The source's idle bytes have changed: updates what is reserved and held.
  void book_idle(DeviceState& device, std::uint64_t covered_bytes = 0) CUPOOL_REQUIRES(device.lock);
  /// Charges the part of `bytes` that idle memory not claimed by other threads does not cover; returns the covered part, or nullopt where the limit
  /// refuses. The caller keeps it in DeviceState::idle_covered_bytes until book_idle() has booked it.
  std::optional<std::uint64_t> charge(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// Returns the source's idle bytes to the device, as many as are wanted or a little more; returns the bytes that went. Calls the driver with the
  /// lock let go.
  std::uint64_t trim(DeviceState& device, std::uint64_t wanted_bytes = kEverything_bytes) CUPOOL_REQUIRES(device.lock);

  /// The most that the driver's rounding adds to the blocks: it gives out memory in pieces of 2 MiB, which only small blocks share.
  std::uint64_t rounding_bytes() const { return rounding_bytes_; }

 private:
  struct Node {
    /// Places it as a live block, in a region of its own. The address is 512-byte aligned, as the driver gives it.
    void place(std::uint64_t address, std::uint64_t bytes);

    heap::Region region;
    heap::Extent extent;
    RegionInfo info;
    bool is_of_pool = false;   ///< it lies in the driver's pool, which cuCtxDestroy leaves
    bool may_be_gone = false;  ///< the end of its context may have taken it along, and the address may be another block's
  };
  using Nodes = std::map<std::uint64_t, Node>;

  bool await_others(DeviceState& device, std::uint32_t* pauses) CUPOOL_REQUIRES(device.lock);
  Error allocate_within_limit(DeviceState& device, ContextPool& home, AllocationRequest& request, std::uint64_t covered_bytes, CUdeviceptr* address,
                              bool* is_of_pool) CUPOOL_REQUIRES(device.lock);
  CUresult allocate_by(DeviceState& device, ContextPool& home, const AllocationRequest& request, const CUdeviceptr* address,
                       const std::function<CUresult()>& call) CUPOOL_REQUIRES(device.lock);
  Error free_unseen(DeviceState& device, ContextPool& home, CUdeviceptr address, std::uint64_t bytes, const char* why) CUPOOL_REQUIRES(device.lock);
  heap::Extent* insert(Nodes::node_type&& handle);
  bool move_aside(std::uint64_t address, std::uint64_t bytes);
  void lose(DeviceState& device, LossVisitor& visitor, Node& node, bool is_nobodys) CUPOOL_REQUIRES(device.lock);
  void lose_all(DeviceState& device, LossVisitor& visitor, bool may_be_gone) CUPOOL_REQUIRES(device.lock);
  void push_waiting(heap::Extent* extent);
  /// What the driver adds to a block that it does not put beside others.
  static std::uint64_t rounding_of(std::uint64_t bytes) {
    return bytes > kRegionGranularity_bytes / 2 ? align_up(bytes, kRegionGranularity_bytes) - bytes : 0;
  }
  void count(const Node& node, std::int64_t sign) {
    const std::uint64_t bytes = node.region.bytes;
    bytes_ += static_cast<std::uint64_t>(sign) * bytes;
    if (!node.is_of_pool) rounding_bytes_ += static_cast<std::uint64_t>(sign) * rounding_of(bytes);
  }

  const std::unique_ptr<BlockSource> source_;
  Nodes nodes_;
  Nodes given_again_;  ///< blocks whose address was given out again: no longer in nodes_, still booked
  Nodes left_;         ///< blocks that are no longer the program's, but still allocated at the driver
  std::uint64_t bytes_ = 0;
  std::uint64_t rounding_bytes_ = 0;       ///< see rounding_bytes()
  heap::Extent* first_waiting_ = nullptr;  ///< blocks in state free, through bin_next: recycled, not yet given back
  std::size_t waiting_ = 0;                ///< how many
};

}  // namespace cupool::device
