// NativeBlocks: blocks that are allocations of the driver, each by a call of its own (block_source.hpp), booked like any other.
//
// Serves the `platform` and `async` policies, CUPOOL_IPC=native (a block that processes without cupool can open) and the ladder's
// last rung. A free is the driver's own call: cuMemFree synchronises as natively. One tree node per block: each costs a driver
// call anyway, and neighbours in the address space are not ours to coalesce.
// Thread rule: as DeviceAllocator; the device's lock.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "pool/device/block_source.hpp"
#include "pool/device/device_allocator.hpp"

namespace cupool::device {

class NativeBlocks final : public DeviceAllocator {
 public:
  /// So often a call waits (kDriverCallPause_ns) for threads that are in the driver for no longer than a call: a second at least.
  static constexpr std::uint32_t kMostPauses = 50'000;

  explicit NativeBlocks(std::unique_ptr<BlockSource> source) : source_(std::move(source)) {}

  heap::Extent* allocate(DeviceState&, const AllocationRequest&) override { return nullptr; }  // nothing is kept free
  void defer(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) override;
  /// Keeps it for the next release(): its free waited for a capture to end.
  void recycle(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) override;
  heap::Extent* find(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) override;
  heap::Extent* find_containing(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) override;
  HeapFigures figures(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  HeapFigures survey(DeviceState& device, observe::OomEvidence& evidence) const CUPOOL_REQUIRES(device.lock) override;
  void abandon(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) override;
  bool outlive(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) override;
  /// Live blocks whose addresses the driver gave out again in the last grow(): they were freed behind our back.
  bool has_given_again() const { return !given_again_.empty(); }
  void lose_given_again(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock);
  bool has_left() const { return !left_.empty(); }
  /// Is `address` in a block that a context which was destroyed has left in the driver's pool? Natively nothing is there any more; the driver would
  /// free it.
  bool is_left(std::uint64_t address) const;
  /// What its context's end may have taken along: is it still in the driver's pool? A question, under the lock, before anything is allocated in `by`,
  /// which is pinned and the device's only context. What is not asked for then never is.
  void ask_for_left(DeviceState& device, const ContextPool& by) CUPOOL_REQUIRES(device.lock);
  /// What a context that ended has left in the driver's pool goes back there, in order of a living one of the device, which is pinned.
  void free_left(DeviceState& device, ContextPool& by) CUPOOL_REQUIRES(device.lock);
  void append_map(DeviceState& device, const TickConverter& time, observe::DeviceSnapshot& out) const CUPOOL_REQUIRES(device.lock) override;
  std::string check(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  Result<Growth> grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t release(DeviceState& device, ContextPool& home, std::uint64_t wanted_bytes, bool at_most) CUPOOL_REQUIRES(device.lock) override;

  /// The driver's own free of a live block. On an error the block stays as it was; otherwise `extent` is gone. May block.
  /// `stream`: not null for a free in its order, which does not block.
  /// `is_over`: nothing touches it any more.
  Status give_back(DeviceState& device, heap::Extent* extent, const CUstream* stream = nullptr, bool is_over = false) CUPOOL_REQUIRES(device.lock);
  bool has_waiting() const { return waiting_ != 0; }
  /// Bytes that release() would give back, with what the driver may have rounded them up to.
  std::uint64_t waiting_bytes() const;
  BlockSource& source() { return *source_; }
  /// The source has more or fewer idle bytes: tells reserved and limit.
  void book_idle(DeviceState& device, std::uint64_t covered_bytes = 0) CUPOOL_REQUIRES(device.lock);
  /// Charges what idle memory that no other thread counts on does not cover; returns what it covers. Nothing: the limit refuses the rest. Who is
  /// served books what is covered by book_idle(), and until then it stands in DeviceState::idle_covered_bytes by whoever called.
  std::optional<std::uint64_t> charge(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// The source's idle bytes go back to the device, as many as are wanted, or a little more. Returns them. Calls the driver with the lock let go.
  std::uint64_t trim(DeviceState& device, std::uint64_t wanted_bytes = kEverything_bytes) CUPOOL_REQUIRES(device.lock);

  /// The most that the driver makes of them beyond what they are: it gives out its memory in pieces of 2 MiB, which only small blocks share.
  std::uint64_t rounding_bytes() const { return rounding_bytes_; }

 private:
  struct Node {
    /// It is a live block there: a region of its own. The address is 512-byte aligned, as the driver gives it.
    void place(std::uint64_t address, std::uint64_t bytes);

    heap::Region region;
    heap::Extent extent;
    RegionInfo info;
    bool is_of_pool = false;   ///< of the driver's, which cuCtxDestroy leaves
    bool may_be_gone = false;  ///< its context's end may have taken it along: the address may be anybody's
  };
  using Nodes = std::map<std::uint64_t, Node>;

  bool await_others(DeviceState& device, std::uint32_t* pauses) CUPOOL_REQUIRES(device.lock);
  Error allocate_within_limit(DeviceState& device, ContextPool& home, const AllocationRequest& request, std::uint64_t covered_bytes,
                              CUdeviceptr* address, bool* is_of_pool) CUPOOL_REQUIRES(device.lock);
  Error free_unseen(DeviceState& device, ContextPool& home, CUdeviceptr address, std::uint64_t bytes, const char* why) CUPOOL_REQUIRES(device.lock);
  heap::Extent* insert(Nodes::node_type&& handle);
  bool move_aside(std::uint64_t address, std::uint64_t bytes);
  void lose(DeviceState& device, LossVisitor& visitor, Node& node, bool is_nobodys) CUPOOL_REQUIRES(device.lock);
  void lose_all(DeviceState& device, LossVisitor& visitor, bool may_be_gone) CUPOOL_REQUIRES(device.lock);
  void push_waiting(heap::Extent* extent);
  void count(const Node& node, std::int64_t sign) {
    const std::uint64_t bytes = node.region.bytes;
    const bool is_whole = !node.is_of_pool && bytes > kRegionGranularity_bytes / 2;
    bytes_ += static_cast<std::uint64_t>(sign) * bytes;
    if (is_whole) rounding_bytes_ += static_cast<std::uint64_t>(sign) * (align_up(bytes, kRegionGranularity_bytes) - bytes);
  }

  const std::unique_ptr<BlockSource> source_;
  Nodes nodes_;
  Nodes given_again_;  ///< no longer in nodes_, still booked
  Nodes left_;         ///< on no list of the program's any more, and still the driver's
  std::uint64_t bytes_ = 0;
  std::uint64_t rounding_bytes_ = 0;       ///< see rounding_bytes()
  heap::Extent* first_waiting_ = nullptr;  ///< blocks in state free, through bin_next: recycled, not yet given back
  std::size_t waiting_ = 0;                ///< how many
};

}  // namespace cupool::device
