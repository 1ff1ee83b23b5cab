// BlockSource: the driver calls that make a block of its own and take it back. PlainBlocks: cuMemAlloc and cuMemFree. AsyncBlocks
// (`async` policy): the driver's stream-ordered pool, for callers that name no stream.
//
// Called without the device's lock, by a thread that has pinned the context, which is current. Thread-safe.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "pool/core/mutex.hpp"

namespace cupool::device {

struct ContextPool;
struct DeviceState;

class BlockSource {
 public:
  BlockSource() = default;
  virtual ~BlockSource() = default;
  BlockSource(const BlockSource&) = delete;
  BlockSource& operator=(const BlockSource&) = delete;

  /// Memory that may be used on any stream. `is_of_pool`: cuCtxDestroy does not take it along.
  virtual CUresult allocate(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out, bool* is_of_pool) = 0;
  /// Gives back what allocate() gave. CUDA_ERROR_NOT_READY: not while something captures that this thread would disturb.
  virtual CUresult free(DeviceState& device, ContextPool& home, CUdeviceptr address) = 0;
  /// The same for a block that nothing touches any more: waits for nothing and makes nothing wait, where that can be.
  virtual CUresult free_unused(DeviceState& device, ContextPool& home, CUdeviceptr address) { return free(device, home, address); }
  /// The same in the order of `stream`, where that can be; else free().
  virtual CUresult free_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream) { return free(device, home, address); }
  /// What it gives back lies idle in the driver, which does not wait for anything meanwhile.
  virtual bool keeps_idle() const { return false; }
  /// The driver did not tell what lies idle, and nobody has trimmed since.
  virtual bool may_hold_more() const { return false; }
  /// Asks the driver what lies idle; NativeBlocks::book_idle() tells it.
  virtual void ask_idle(DeviceState&) {}
  /// Gives idle bytes back to the device: as many as are wanted, or a little more.
  virtual void trim(DeviceState&, std::uint64_t /*wanted_bytes*/) {}
  /// The context is gone, and with it what this made there.
  virtual void forget() {}
};

class PlainBlocks final : public BlockSource {
 public:
  /// `exact`: the program asked for native behaviour, so our calls run in its own capture mode.
  explicit PlainBlocks(bool exact) : exact_(exact) {}
  CUresult allocate(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out, bool* is_of_pool) override;
  CUresult free(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  CUresult free_unused(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  CUresult free_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream stream) override;

 private:
  const bool exact_;
};

/// Blocks of the driver's pool, allocated and freed on a private stream of the context, which has nothing else to do and so is never waited for for
/// long. There are two, because one may come to stand behind work of the program: memory that the pool gives before the program's own free of it is
/// reached, or an event that the whole context waits for (cuCtxWaitEvent); when both do, the native call serves. A free comes here once nothing
/// touches the block (deferral.cpp). Source: CUDA Driver API 13.0, Stream Ordered Memory Allocator.
class AsyncBlocks final : public BlockSource {
 public:
  CUresult allocate(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out, bool* is_of_pool) override;
  CUresult free(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  /// CUDA_ERROR_NOT_READY: the driver takes it in no order, so that it has to be deferred.
  CUresult free_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream stream) override;
  bool keeps_idle() const override { return true; }
  bool may_hold_more() const override { return may_hold_more_.load(std::memory_order_relaxed) || is_going_.load(std::memory_order_relaxed); }
  void ask_idle(DeviceState& device) override;
  void trim(DeviceState& device, std::uint64_t wanted_bytes) override;
  void forget() override;

  /// Makes the driver's pool hold `bytes`; CUDA_ERROR_OUT_OF_MEMORY when it cannot.
  CUresult prime(DeviceState& device, ContextPool& home, std::uint64_t bytes);

 private:
  /// An allocation on an idle stream takes 0.34 us on an H100, the first of a process 9 ms
  static constexpr std::uint64_t kSettleBound_ns = 2'000'000;
  static constexpr std::uint64_t kSettlePause_ns = 10'000;
  static constexpr int kSpins = 64;  ///< so often it is asked without a pause

  struct PrivateStream {
    std::atomic<CUstream> handle{nullptr};
    std::atomic<bool> is_behind{false};  ///< behind work of the program, when last asked
  };

  CUresult make_streams(DeviceState& device, const ContextPool& home);
  CUmemoryPool mempool(DeviceState& device);
  bool keep_freed_bytes(DeviceState& device, CUmemoryPool mempool);
  CUresult settle(DeviceState& device, PrivateStream& stream);
  void settle_frees(DeviceState& device, bool also_behind);
  PrivateStream* idle_stream(DeviceState& device);
  CUresult allocate_from_pool(DeviceState& device, std::size_t bytes, CUdeviceptr* out);
  CUresult allocate_plain(DeviceState& device, std::size_t bytes, CUdeviceptr* out);
  bool trim_pool(DeviceState& device, std::uint64_t keep_bytes);
  bool sample(DeviceState& device);
  static bool ask_attribute(DeviceState& device, CUmemoryPool mempool, CUmemPool_attribute attribute, cuuint64_t* bytes);

  Mutex mutex_;            ///< held while the streams are made
  Mutex threshold_mutex_;  ///< held while the release threshold is another than it should be
  std::array<PrivateStream, 2> streams_;
  std::atomic<bool> is_made_{false};
  std::atomic<CUmemoryPool> mempool_{nullptr};
  std::atomic<bool> may_hold_more_{false};
  std::atomic<bool> is_going_{false};  ///< a block was freed in order of a stream that has not come to its end since, as far as is known
};

}  // namespace cupool::device
