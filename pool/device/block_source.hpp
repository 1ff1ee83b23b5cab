// BlockSource: the driver calls that make a block of its own and take it back. PlainBlocks: cuMemAlloc and cuMemFree. AsyncBlocks
// (`async` policy): the driver's stream-ordered pool, for callers that name no stream.
//
// Called without the device's lock, by a thread that has pinned the context, which is current. Thread-safe.
#pragma once

#include <cuda.h>

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

  /// Memory that may be used on any stream.
  virtual CUresult take(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out) = 0;
  /// Gives back what take() gave. CUDA_ERROR_NOT_READY: not while something captures that this thread would disturb.
  virtual CUresult give(DeviceState& device, ContextPool& home, CUdeviceptr address) = 0;
  /// The same for a block that nothing touches any more: waits for nothing and makes nothing wait, where that can be.
  virtual CUresult give_over(DeviceState& device, ContextPool& home, CUdeviceptr address) { return give(device, home, address); }
  /// The same in the order of `stream`, where that can be; else give().
  virtual CUresult give_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream) { return give(device, home, address); }
  /// Bytes that the driver keeps for reuse by take(), as of its last call; they are the device pool's too.
  virtual std::uint64_t idle_bytes() const { return 0; }
  /// Gives idle bytes back to the device.
  virtual void trim(DeviceState&) {}
  /// The context is gone, and with it what this made there.
  virtual void forget() {}
};

class PlainBlocks final : public BlockSource {
 public:
  /// `exact`: the program asked for native behaviour, so our calls run in its own capture mode.
  explicit PlainBlocks(bool exact) : exact_(exact) {}
  CUresult take(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out) override;
  CUresult give(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  CUresult give_over(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  CUresult give_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream stream) override;

 private:
  const bool exact_;
};

/// Two private streams per context. Allocations run on one and the caller waits for that one only; frees on the other, which first
/// waits on the device for all work that could touch the block. The driver's pool makes the first wait for the second only
/// where it must reuse what is still in use. Source: CUDA Driver API 13.0, Stream Ordered Memory Allocator.
class AsyncBlocks final : public BlockSource {
 public:
  CUresult take(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out) override;
  CUresult give(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  CUresult give_over(DeviceState& device, ContextPool& home, CUdeviceptr address) override;
  std::uint64_t idle_bytes() const override { return idle_bytes_.load(std::memory_order_relaxed); }
  void trim(DeviceState& device) override;
  void forget() override;

  /// Makes the driver's pool hold `bytes`; CUDA_ERROR_OUT_OF_MEMORY when it cannot.
  CUresult prime(DeviceState& device, ContextPool& home, std::uint64_t bytes);

 private:
  CUresult enter(DeviceState& device);
  CUresult make_usable(DeviceState& device, CUdeviceptr address, CUstream stream);
  void sample(DeviceState& device);

  Mutex mutex_;  ///< held while the streams are made
  std::atomic<CUstream> allocating_{nullptr};
  std::atomic<CUstream> freeing_{nullptr};
  std::atomic<CUmemoryPool> mempool_{nullptr};
  std::atomic<std::uint64_t> idle_bytes_{0};
};

}  // namespace cupool::device
