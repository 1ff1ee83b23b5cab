// PlainBlocks and AsyncBlocks: see block_source.hpp.
#include "pool/device/block_source.hpp"

#include <algorithm>
#include <optional>

#include "pool/core/bytes.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/fence.hpp"
#include "pool/device/freeing_in_order.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
constexpr int kFreeAttempts = 3;

/// Is the error one that the program's own call would have met? Any other comes of the streams that are ours.
bool is_answer(CUresult code) { return is_of_earlier_work(code) || code == CUDA_ERROR_DEINITIALIZED; }
}  // namespace

CUresult PlainBlocks::allocate(DeviceState& device, ContextPool&, std::size_t bytes, CUdeviceptr* out, bool* is_of_pool) {
  *is_of_pool = false;
  const RelaxedCaptureMode relaxed(device.driver, !exact_);
  return device.driver.cuMemAlloc_v2(out, bytes);
}

CUresult PlainBlocks::free(DeviceState& device, ContextPool&, CUdeviceptr address) {
  const RelaxedCaptureMode relaxed(device.driver, !exact_);
  // Natively the driver would refuse the program's free, and end the capture. Here the block waits for the capture's end.
  if (!exact_ && device.services.gate.forbids(relaxed.before())) return CUDA_ERROR_NOT_READY;
  return device.driver.cuMemFree_v2(address);
}

CUresult PlainBlocks::free_unused(DeviceState& device, ContextPool& home, CUdeviceptr address) {
  const RelaxedCaptureMode relaxed(device.driver, !exact_);
  // cuMemFree would wait for running work, which may itself wait for this very thread.
  if (!exact_) {
    const ScopedContext current(device.driver, home.registered.context);
    if (CUstream stream = current.status().ok() ? in_order::stream_of(device, home) : nullptr) {
      const CUresult code = in_order::free(device, stream, address);
      if (code == CUDA_SUCCESS) in_order::await(device, home, stream);
      if (code == CUDA_SUCCESS || is_answer(code)) return code;
    }
  }
  return device.driver.cuMemFree_v2(address);
}

CUresult PlainBlocks::free_on(DeviceState& device, ContextPool& home, CUdeviceptr address, CUstream stream) {
  return device.driver.has_cuMemFreeAsync() ? device.driver.cuMemFreeAsync(address, stream) : free(device, home, address);
}

/// Makes the two private streams, at the first use.
CUresult AsyncBlocks::make_streams(DeviceState& device, const ContextPool& home) {
  if (is_made_.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  const MutexLock lock(mutex_);
  if (is_made_.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  const Driver& driver = device.driver;
  // A green context of this one may be current, and streams that are made there end with it.
  const ScopedContext current(driver, home.registered.context);
  if (!current.status().ok()) return current.status().code();
  CUstream made[2] = {};
  for (CUstream& stream : made) {
    const CUresult code = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (code == CUDA_SUCCESS) continue;
    if (made[0] != nullptr) driver.cuStreamDestroy_v2(made[0]);
    return code;
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].handle.store(made[i], std::memory_order_relaxed);
    streams_[i].is_behind.store(false, std::memory_order_relaxed);
  }
  is_made_.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

/// The device's default pool; null as long as the driver does not tell it. (Not the current pool: that may be the program's own, with a size limit,
/// and be destroyed.) When it is first known it is told to keep what is freed, unless the program has set its threshold already.
CUmemoryPool AsyncBlocks::mempool(DeviceState& device) {
  CUmemoryPool mempool = mempool_.load(std::memory_order_relaxed);
  if (mempool != nullptr || !device.driver.has_cuDeviceGetDefaultMemPool()) return mempool;
  if (device.driver.cuDeviceGetDefaultMemPool(&mempool, device.ordinal) != CUDA_SUCCESS) return nullptr;
  if (keep_freed_bytes(device, mempool)) mempool_.store(mempool, std::memory_order_relaxed);  // else tried again the next time
  return mempool;
}

/// Sets the pool's release threshold. False: it was refused for a reason that may pass.
bool AsyncBlocks::keep_freed_bytes(DeviceState& device, CUmemoryPool mempool) {
  if (!device.driver.has_cuMemPoolSetAttribute()) return true;
  const std::optional<std::uint64_t>& asked_bytes = device.services.options.release_threshold_bytes;
  cuuint64_t threshold_bytes = 0;
  const bool is_known =
      device.driver.has_cuMemPoolGetAttribute() &&
      device.driver.cuMemPoolGetAttribute(mempool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, static_cast<void*>(&threshold_bytes)) == CUDA_SUCCESS;
  if (!asked_bytes && is_known && threshold_bytes != 0) return true;
  threshold_bytes = asked_bytes.value_or(UINT64_MAX);
  const CUresult code = device.driver.cuMemPoolSetAttribute(mempool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, static_cast<void*>(&threshold_bytes));
  return code == CUDA_SUCCESS || code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_INVALID_VALUE;
}

bool AsyncBlocks::ask_attribute(DeviceState& device, CUmemoryPool mempool, CUmemPool_attribute attribute, cuuint64_t* bytes) {
  return mempool != nullptr && device.driver.has_cuMemPoolGetAttribute() &&
         device.driver.cuMemPoolGetAttribute(mempool, attribute, static_cast<void*>(bytes)) == CUDA_SUCCESS;
}

/// Asks the driver what its pool holds that nobody uses, and keeps the answer in DeviceState::driver_pool. False: it did not say.
bool AsyncBlocks::sample(DeviceState& device) {
  const std::uint64_t ticket = device.driver_pool.ticket();
  const CUmemoryPool mempool = this->mempool(device);
  cuuint64_t reserved_bytes = 0;
  cuuint64_t used_bytes = 0;
  const bool is_known = ask_attribute(device, mempool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes) &&
                        ask_attribute(device, mempool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes);
  may_hold_more_.store(!is_known, std::memory_order_relaxed);
  if (is_known) device.driver_pool.note_used(used_bytes);
  if (is_known) device.driver_pool.update(ticket, saturating_sub(reserved_bytes, used_bytes));
  return is_known;
}

/// Waits until the stream has done all that it was given: CUDA_SUCCESS. For a short while only: the stream has nothing to do but what we gave it, so
/// if it is not done it stands behind work of the program, which may wait for the very thread that allocates here. Then CUDA_ERROR_NOT_READY.
CUresult AsyncBlocks::settle(DeviceState& device, PrivateStream& stream) {
  Clock& clock = device.services.clock;
  const std::uint64_t until_ns = clock.now_ns() + kSettleBound_ns;
  CUresult code = CUDA_ERROR_NOT_READY;
  for (int i = 0; code == CUDA_ERROR_NOT_READY; ++i) {
    code = device.driver.cuStreamQuery(stream.handle.load(std::memory_order_relaxed));
    if (code != CUDA_ERROR_NOT_READY || i < kSpins) continue;
    if (clock.now_ns() >= until_ns) break;
    clock.pause(kSettlePause_ns);
  }
  stream.is_behind.store(code == CUDA_ERROR_NOT_READY, std::memory_order_relaxed);
  return code;
}

/// Waits for our frees. Even on an idle stream a free takes effect only when the device gets to it, and until then the driver may still count the
/// block as used [?]. `also_behind`: also on a stream that stands behind work of the program.
void AsyncBlocks::settle_frees(DeviceState& device, bool also_behind) {
  if (!is_made_.load(std::memory_order_acquire)) return;
  is_going_.store(false, std::memory_order_relaxed);
  for (PrivateStream& stream : streams_)
    if (also_behind || !stream.is_behind.load(std::memory_order_relaxed)) settle(device, stream);
}

/// A private stream that does not stand behind work of the program, as far as is known; null: both do.
AsyncBlocks::PrivateStream* AsyncBlocks::idle_stream(DeviceState& device) {
  for (PrivateStream& stream : streams_) {
    if (!stream.is_behind.load(std::memory_order_relaxed)) return &stream;
    if (device.driver.cuStreamQuery(stream.handle.load(std::memory_order_relaxed)) == CUDA_ERROR_NOT_READY) continue;
    stream.is_behind.store(false, std::memory_order_relaxed);
    return &stream;
  }
  return nullptr;
}

CUresult AsyncBlocks::allocate(DeviceState& device, ContextPool& home, std::size_t bytes, CUdeviceptr* out, bool* is_of_pool) {
  *is_of_pool = false;
  const RelaxedCaptureMode relaxed(device.driver);
  if (const CUresult code = make_streams(device, home); code != CUDA_SUCCESS) return is_answer(code) ? code : allocate_plain(device, bytes, out);
  CUresult code = allocate_from_pool(device, bytes, out);
  *is_of_pool = code == CUDA_SUCCESS;
  // The pool could not serve it just now, or this driver does not serve such calls although it says that it does.
  if (code != CUDA_SUCCESS && !is_answer(code)) code = allocate_plain(device, bytes, out);
  sample(device);
  return code;
}

/// CUDA_ERROR_NOT_READY: the pool has no memory that could be used without waiting; natively an allocation waits for nothing.
CUresult AsyncBlocks::allocate_from_pool(DeviceState& device, std::size_t bytes, CUdeviceptr* out) {
  PrivateStream* const stream = idle_stream(device);
  if (stream == nullptr) return CUDA_ERROR_NOT_READY;
  const CUstream handle = stream->handle.load(std::memory_order_relaxed);
  const CUmemoryPool mempool = this->mempool(device);
  const bool is_named = mempool != nullptr && device.driver.has_cuMemAllocFromPoolAsync();
  bytes = align_up(bytes, kBlockAlignment_bytes);  // so that the pool's used bytes are the sum of what blocks are rounded to
  CUresult code = is_named ? device.driver.cuMemAllocFromPoolAsync(out, bytes, mempool, handle) : device.driver.cuMemAllocAsync(out, bytes, handle);
  if (code != CUDA_SUCCESS) return code;
  code = settle(device, *stream);
  if (code == CUDA_SUCCESS) return code;
  // The pool gave memory whose free by the program has not been reached yet, or the whole context waits for an event (cuCtxWaitEvent).
  if (device.driver.cuMemFreeAsync(*out, handle) != CUDA_SUCCESS) device.driver.cuMemFree_v2(*out);
  return is_answer(code) ? code : CUDA_ERROR_NOT_READY;
}

CUresult AsyncBlocks::allocate_outside(DeviceState& device, std::size_t bytes, CUdeviceptr* out) {
  const RelaxedCaptureMode relaxed(device.driver);
  return allocate_plain(device, bytes, out);
}

/// By cuMemAlloc, which waits for nothing either. Where memory is out, once more after what the pool has idle went back to the device.
CUresult AsyncBlocks::allocate_plain(DeviceState& device, std::size_t bytes, CUdeviceptr* out) {
  const CUresult code = device.driver.cuMemAlloc_v2(out, bytes);
  if (code != CUDA_ERROR_OUT_OF_MEMORY || !is_made_.load(std::memory_order_acquire)) return code;
  trim_pool(device, 0);
  return device.driver.cuMemAlloc_v2(out, bytes);
}

/// Nothing touches the block any more (the deferred frees saw to that), so that it may be freed in the order of any stream.
CUresult AsyncBlocks::free(DeviceState& device, ContextPool& home, CUdeviceptr address) {
  const ScopedContext current(device.driver, home.registered.context);
  if (!current.status().ok()) return current.status().code();
  const CUresult entered = make_streams(device, home);
  if (is_answer(entered)) return entered;
  const RelaxedCaptureMode relaxed(device.driver);
  CUresult code = CUDA_ERROR_NOT_SUPPORTED;
  if (entered == CUDA_SUCCESS) {
    const PrivateStream* idle = idle_stream(device);
    code = device.driver.cuMemFreeAsync(address, (idle != nullptr ? *idle : streams_.front()).handle.load(std::memory_order_relaxed));
    if (code == CUDA_SUCCESS) is_going_.store(true, std::memory_order_relaxed);
  }
  // The block came from allocate_plain(), or the driver frees nothing in stream order just now.
  if (code != CUDA_SUCCESS && !is_answer(code)) code = device.driver.cuMemFree_v2(address);
  sample(device);
  return code;
}

CUresult AsyncBlocks::free_on(DeviceState& device, ContextPool&, CUdeviceptr address, CUstream stream) {
  const CUresult code = device.driver.cuMemFreeAsync(address, stream);
  sample(device);
  return code == CUDA_SUCCESS || is_answer(code) ? code : CUDA_ERROR_NOT_READY;
}

CUresult AsyncBlocks::prime(DeviceState& device, ContextPool& home, std::uint64_t bytes) {
  const RelaxedCaptureMode relaxed(device.driver);
  if (const CUresult code = make_streams(device, home); code != CUDA_SUCCESS) return code;
  CUdeviceptr address = 0;
  if (const CUresult code = allocate_from_pool(device, bytes, &address); code != CUDA_SUCCESS) {
    if (code == CUDA_ERROR_NOT_READY) sample(device);  // the pool may have grown all the same, and have the memory back soon
    return code;
  }
  // This block is in no book: if it is not freed now, nobody ever will. So what the driver refuses is tried again, on either stream.
  CUresult code = free(device, home, address);
  for (int attempt = 0; attempt < kFreeAttempts && code != CUDA_SUCCESS && !is_answer(code); ++attempt) {
    code = device.driver.cuMemFreeAsync(address, streams_.front().handle.load(std::memory_order_relaxed));
    if (code != CUDA_SUCCESS) code = free(device, home, address);
    else is_going_.store(true, std::memory_order_relaxed);
    sample(device);
  }
  return code;
}

/// Trims the pool down to `keep_bytes`, as far as the driver can, without waiting for running work. (Where the driver does not tell its default pool,
/// blocks come from the current one.) A driver that refuses cuMemPoolTrimTo gives back what is above the release threshold at a synchronisation: so
/// the threshold is 0 for a moment. False: calling again with another number would change nothing.
bool AsyncBlocks::trim_pool(DeviceState& device, std::uint64_t keep_bytes) {
  const Driver& driver = device.driver;
  CUmemoryPool mempool = this->mempool(device);
  if (mempool == nullptr && (!driver.has_cuDeviceGetMemPool() || driver.cuDeviceGetMemPool(&mempool, device.ordinal) != CUDA_SUCCESS)) return false;
  if (driver.has_cuMemPoolTrimTo() && driver.cuMemPoolTrimTo(mempool, keep_bytes) == CUDA_SUCCESS) return true;
  cuuint64_t threshold_bytes = 0;
  cuuint64_t none = 0;
  if (!driver.has_cuMemPoolGetAttribute() || !driver.has_cuMemPoolSetAttribute() || !driver.has_cuStreamSynchronize()) return false;
  if (!is_made_.load(std::memory_order_acquire)) return false;
  const MutexLock turn(threshold_mutex_);  // another thread would read the 0 that stands there for a moment, and set it again
  if (driver.cuMemPoolGetAttribute(mempool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, static_cast<void*>(&threshold_bytes)) != CUDA_SUCCESS) return false;
  driver.cuMemPoolSetAttribute(mempool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, static_cast<void*>(&none));
  for (PrivateStream& stream : streams_)
    if (settle(device, stream) == CUDA_SUCCESS) driver.cuStreamSynchronize(stream.handle.load(std::memory_order_relaxed));
  for (int attempt = 0; attempt < 2; ++attempt)  // the driver may refuse a call once
    if (driver.cuMemPoolSetAttribute(mempool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, static_cast<void*>(&threshold_bytes)) == CUDA_SUCCESS) break;
  return false;
}

void AsyncBlocks::ask_idle(DeviceState& device) {
  const RelaxedCaptureMode relaxed(device.driver);
  if (is_going_.load(std::memory_order_relaxed)) settle_frees(device, false);
  sample(device);
}

void AsyncBlocks::trim(DeviceState& device, std::uint64_t wanted_bytes) {
  // Nobody has used the pool.
  if (!is_made_.load(std::memory_order_acquire) && mempool_.load(std::memory_order_relaxed) == nullptr) return;
  const RelaxedCaptureMode relaxed(device.driver);
  settle_frees(device, true);
  const auto reserved = [&] {
    cuuint64_t bytes = 0;
    return ask_attribute(device, mempool(device), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) ? bytes : 0;
  };
  // The driver gives back whole pieces, and never goes below what is to be kept; where it has only large pieces nothing may go. So it may keep less
  // and less, until what went is enough.
  const std::uint64_t before_bytes = reserved();
  std::uint64_t offered_bytes = std::min(wanted_bytes, before_bytes);
  bool is_trimmed = trim_pool(device, before_bytes - offered_bytes);
  while (is_trimmed && offered_bytes < before_bytes && saturating_sub(before_bytes, reserved()) < wanted_bytes) {
    offered_bytes += std::min(offered_bytes, before_bytes - offered_bytes);
    is_trimmed = trim_pool(device, before_bytes - offered_bytes);
  }
  if (sample(device)) return;
  device.driver_pool.update(device.driver_pool.ticket(), 0);  // the driver does not tell, and this was all that can be done
  may_hold_more_.store(false, std::memory_order_relaxed);
}

void AsyncBlocks::forget() {
  is_made_.store(false, std::memory_order_relaxed);
  is_going_.store(false, std::memory_order_relaxed);
  may_hold_more_.store(false, std::memory_order_relaxed);
}

}  // namespace cupool::device
