// BlockSource: the driver calls by which a block is allocated and freed that is an allocation of its own. PlainBlocks: cuMemAlloc and cuMemFree.
// AsyncBlocks (policy `async`): the driver's stream-ordered pool, for callers that name no stream.
//
// Every answer is the driver's own CUresult, but for those that are said. Thread-safe. Called without the device's lock, by a thread that has pinned
// the context, which is current.
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

  /// At least `bytes` of memory that may be used on any stream from now on. `*is_of_pool`: it comes from a memory pool, so that cuCtxDestroy leaves
  /// it.
  virtual CUresult allocate(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out, bool* is_of_pool) = 0;
  /// The same from no pool, where blocks come from one otherwise.
  virtual CUresult allocate_outside(DeviceState&, std::size_t /*bytes*/, CUdeviceptr*) { return CUDA_ERROR_NOT_SUPPORTED; }
  /// Frees what allocate() gave. CUDA_ERROR_NOT_READY: not now, because something captures that this call would disturb. May block.
  virtual CUresult free(DeviceState& device, ContextPool& home, CUdeviceptr address) = 0;
  /// The same for a block that nothing touches any more: without blocking, where the driver can do that.
  virtual CUresult free_unused(DeviceState& device, ContextPool& home, CUdeviceptr address) { return free(device, home, address); }
  /// The same in the order of `stream`, where the driver can do that; else as free().
  virtual CUresult free_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream) { return free(device, home, address); }
  /// Does what it frees stay idle in a pool of the driver's?
  virtual bool keeps_idle() const { return false; }
  /// May more lie idle than is known? (The driver did not say, and nobody has trimmed since; or frees are still on their way.)
  virtual bool may_hold_more() const { return false; }
  /// Asks the driver what lies idle (DeviceState::driver_pool); NativeBlocks::book_idle() books it.
  virtual void ask_idle(DeviceState&) {}
  /// Gives idle bytes back to the device: `wanted_bytes`, or a little more, or all there are.
  virtual void trim(DeviceState&, std::uint64_t /*wanted_bytes*/) {}
  /// The context has ended, and with it what this has made there.
  virtual void forget() {}
};

class PlainBlocks final : public BlockSource {
 public:
  /// `exact`: the program is to see native behaviour, so that calls run in its own capture mode.
  explicit PlainBlocks(bool exact) : exact_(exact) {}
  CUresult allocate(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out, bool* is_of_pool) override;
  CUresult free(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  CUresult free_unused(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  CUresult free_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream stream) override;

 private:
  const bool exact_;
};

/// Blocks of the driver's pool, allocated and freed on private streams of the context, which have nothing else to do, so that they need not be waited
/// for for long. There are two, because one may come to stand behind work of the program: when the pool gives memory before the program's free of it
/// has been reached, or when the whole context waits for an event (cuCtxWaitEvent). When both do, cuMemAlloc serves. A block is freed here once
/// nothing touches it (deferral.cpp). Source: CUDA Driver API 13.0, Stream Ordered Memory Allocator.
class AsyncBlocks final : public BlockSource {
 public:
  CUresult allocate(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out, bool* is_of_pool) override;
  CUresult allocate_outside(DeviceState& device, std::size_t bytes, CUdeviceptr* out) override;
  CUresult free(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  /// CUDA_ERROR_NOT_READY: the driver does not free it in stream order, so that the free has to be deferred.
  CUresult free_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream stream) override;
  bool keeps_idle() const override { return true; }
  bool may_hold_more() const override { return may_hold_more_.load(std::memory_order_relaxed) || is_going_.load(std::memory_order_relaxed); }
  void ask_idle(DeviceState& device) override;
  void trim(DeviceState& device, std::uint64_t wanted_bytes) override;
  void forget() override;

  /// Makes the driver's pool hold `bytes` more; CUDA_ERROR_OUT_OF_MEMORY when it cannot.
  CUresult prime(DeviceState& device, ContextPool& home, std::uint64_t bytes);

 private:
  /// How long settle() waits. An allocation on an idle stream takes 0.34 us on an H100 (the first one of a process 9 ms, which is not waited for).
  static constexpr std::uint64_t kSettleBound_ns = 2'000'000;
  static constexpr std::uint64_t kSettlePause_ns = 10'000;
  static constexpr int kSpins = 64;  ///< how often the stream is asked before the first pause

  struct PrivateStream {
    std::atomic<CUstream> handle{nullptr};
    std::atomic<bool> is_behind{false};  ///< it stood behind work of the program when it was last asked
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
  Mutex threshold_mutex_;  ///< held while trim_pool() has changed the release threshold
  std::array<PrivateStream, 2> streams_;
  std::atomic<bool> is_made_{false};            ///< the streams are there
  std::atomic<CUmemoryPool> mempool_{nullptr};  ///< see mempool(); null: not known yet
  std::atomic<bool> may_hold_more_{false};
  std::atomic<bool> is_going_{false};  ///< a block was freed, and that free has not been seen to take effect
};

}  // namespace cupool::device
