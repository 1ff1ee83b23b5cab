// The driver's own calls. See block_source.hpp.
#include "pool/device/block_source.hpp"

#include <algorithm>

#include "pool/device/context_pool.hpp"
#include "pool/device/fence.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

CUresult PlainBlocks::take(DeviceState& device, ContextPool&, std::size_t bytes, CUdeviceptr* out) {
  const RelaxedCaptureMode relaxed(device.driver, !exact_);
  return device.driver.cuMemAlloc_v2(out, bytes);
}

CUresult PlainBlocks::give(DeviceState& device, ContextPool&, CUdeviceptr address) {
  const RelaxedCaptureMode relaxed(device.driver, !exact_);
  // Where the program's own free had been refused, and had ended a capture, the block waits for the end of that.
  if (!exact_ && device.services.gate.forbids(relaxed.before())) return CUDA_ERROR_NOT_READY;
  return device.driver.cuMemFree_v2(address);
}

CUresult PlainBlocks::give_over(DeviceState& device, ContextPool&, CUdeviceptr address) {
  const RelaxedCaptureMode relaxed(device.driver, !exact_);
  return device.driver.cuMemFree_v2(address);
}

CUresult PlainBlocks::give_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream stream) {
  return device.driver.has_cuMemFreeAsync() ? device.driver.cuMemFreeAsync(address, stream) : give(device, home, address);
}

/// The streams of the current context, made at the first use; and the pool, told to keep what it has.
CUresult AsyncBlocks::enter(DeviceState& device) {
  if (freeing_.load(std::memory_order_acquire) != nullptr) return CUDA_SUCCESS;
  const MutexLock lock(mutex_);
  if (freeing_.load(std::memory_order_relaxed) != nullptr) return CUDA_SUCCESS;
  const Driver& driver = device.driver;
  CUstream streams[2] = {};
  for (CUstream& stream : streams) {
    const CUresult code = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (code == CUDA_SUCCESS) continue;
    if (streams[0] != nullptr) driver.cuStreamDestroy_v2(streams[0]);
    return code;
  }
  CUmemoryPool mempool = nullptr;
  // The default pool: the current one may be the program's own, with a size of its own, and be destroyed.
  if (driver.has_cuDeviceGetDefaultMemPool() && driver.cuDeviceGetDefaultMemPool(&mempool, device.ordinal) == CUDA_SUCCESS && driver.has_cuMemPoolSetAttribute()) {
    cuuint64_t threshold_bytes = device.services.options.release_threshold_bytes.value_or(UINT64_MAX);
    driver.cuMemPoolSetAttribute(mempool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, static_cast<void*>(&threshold_bytes));
  }
  mempool_.store(mempool, std::memory_order_relaxed);
  allocating_.store(streams[0], std::memory_order_relaxed);
  freeing_.store(streams[1], std::memory_order_release);
  return CUDA_SUCCESS;
}

/// What the pool holds and nobody uses.
void AsyncBlocks::sample(DeviceState& device) {
  const CUmemoryPool mempool = mempool_.load(std::memory_order_relaxed);
  if (mempool == nullptr || !device.driver.has_cuMemPoolGetAttribute()) return;
  cuuint64_t reserved_bytes = 0;
  cuuint64_t used_bytes = 0;
  if (device.driver.cuMemPoolGetAttribute(mempool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, static_cast<void*>(&reserved_bytes)) != CUDA_SUCCESS) return;
  if (device.driver.cuMemPoolGetAttribute(mempool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, static_cast<void*>(&used_bytes)) != CUDA_SUCCESS) return;
  idle_bytes_.store(reserved_bytes - std::min(used_bytes, reserved_bytes), std::memory_order_relaxed);
}

CUresult AsyncBlocks::take(DeviceState& device, ContextPool&, std::size_t bytes, CUdeviceptr* out) {
  const RelaxedCaptureMode relaxed(device.driver);
  if (const CUresult code = enter(device); code != CUDA_SUCCESS) return code;
  const CUstream stream = allocating_.load(std::memory_order_relaxed);
  const CUmemoryPool mempool = mempool_.load(std::memory_order_relaxed);
  const auto ask = [&] {
    if (mempool == nullptr || !device.driver.has_cuMemAllocFromPoolAsync()) return device.driver.cuMemAllocAsync(out, bytes, stream);
    return device.driver.cuMemAllocFromPoolAsync(out, bytes, mempool, stream);
  };
  CUresult code = ask();
  if (code == CUDA_ERROR_OUT_OF_MEMORY && device.driver.cuStreamSynchronize(freeing_.load(std::memory_order_relaxed)) == CUDA_SUCCESS)
    code = ask();  // natively every free before this call had waited as well
  if (code == CUDA_SUCCESS) code = make_usable(device, *out, stream);
  sample(device);
  return code;
}

/// Waits until a new block may be used on any stream. What cannot be waited for goes back: an error is no reason to keep memory.
CUresult AsyncBlocks::make_usable(DeviceState& device, CUdeviceptr address, CUstream stream) {
  CUresult code = device.driver.cuStreamSynchronize(stream);
  if (code != CUDA_SUCCESS && !is_of_earlier_work(code)) code = device.driver.cuCtxSynchronize();
  if (code != CUDA_SUCCESS) device.driver.cuMemFreeAsync(address, stream);
  return code;
}

CUresult AsyncBlocks::give(DeviceState& device, ContextPool& home, CUdeviceptr address) {
  // What the driver says of our streams and events is no answer to the free: the block waits with the deferred ones.
  const auto put_off = [](CUresult code) { return is_of_earlier_work(code) || code == CUDA_ERROR_DEINITIALIZED ? code : CUDA_ERROR_NOT_READY; };
  const ScopedContext current(device.driver, home.registered.context);
  if (!current.status().ok()) return put_off(current.status().code());
  if (const CUresult code = enter(device); code != CUDA_SUCCESS) return put_off(code);
  const CUstream stream = freeing_.load(std::memory_order_relaxed);
  Fence fence;
  FenceResult fenced = fence.record(device, home.registered.context);
  if (fenced.answer == FenceAnswer::done && fenced.error.code == CUDA_SUCCESS) fenced = fence.wait_all_on_device(device, stream);
  fence.clear(device.services.contexts);
  if (fenced.error.code != CUDA_SUCCESS) return put_off(fenced.error.code);
  if (fenced.answer == FenceAnswer::impossible) return CUDA_ERROR_NOT_READY;
  const RelaxedCaptureMode relaxed(device.driver);
  if (fenced.answer == FenceAnswer::unsupported)
    if (const CUresult code = device.driver.cuCtxSynchronize(); code != CUDA_SUCCESS) return put_off(code);
  const CUresult code = device.driver.cuMemFreeAsync(address, stream);
  sample(device);
  return code;
}

/// A fence recorded now would also cover later work, which may wait for the very thread whose allocation gets this memory.
CUresult AsyncBlocks::give_over(DeviceState& device, ContextPool& home, CUdeviceptr address) {
  const ScopedContext current(device.driver, home.registered.context);
  if (!current.status().ok()) return current.status().code();
  if (const CUresult code = enter(device); code != CUDA_SUCCESS) return code;
  const RelaxedCaptureMode relaxed(device.driver);
  const CUresult code = device.driver.cuMemFreeAsync(address, freeing_.load(std::memory_order_relaxed));
  sample(device);
  return code;
}

CUresult AsyncBlocks::prime(DeviceState& device, ContextPool& home, std::uint64_t bytes) {
  CUdeviceptr address = 0;
  if (const CUresult code = take(device, home, bytes, &address); code != CUDA_SUCCESS) return code;
  const RelaxedCaptureMode relaxed(device.driver);
  const CUstream stream = allocating_.load(std::memory_order_relaxed);  // nobody has used it: no fence is needed
  const CUresult code = device.driver.cuMemFreeAsync(address, stream);
  if (code == CUDA_SUCCESS) device.driver.cuStreamSynchronize(stream);
  sample(device);
  return code;
}

void AsyncBlocks::trim(DeviceState& device) {
  const CUmemoryPool mempool = mempool_.load(std::memory_order_relaxed);
  if (mempool == nullptr || !device.driver.has_cuMemPoolTrimTo()) return;
  const RelaxedCaptureMode relaxed(device.driver);
  device.driver.cuStreamSynchronize(freeing_.load(std::memory_order_relaxed));  // natively the frees had waited
  device.driver.cuMemPoolTrimTo(mempool, 0);
  sample(device);
}

void AsyncBlocks::forget() {
  freeing_.store(nullptr, std::memory_order_relaxed);
  allocating_.store(nullptr, std::memory_order_relaxed);
  idle_bytes_.store(0, std::memory_order_relaxed);
}

}  // namespace cupool::device
