// Questions to the driver's memory pools, and trims of them: see driver_pools.hpp.
#include "pool/device/driver_pools.hpp"

#include <algorithm>
#include <new>
#include <optional>

#include "pool/core/bytes.hpp"

namespace cupool::device {

namespace {
std::optional<std::uint64_t> told(const Driver& driver, CUmemoryPool handle, CUmemPool_attribute attribute) {
  cuuint64_t bytes = 0;
  if (driver.cuMemPoolGetAttribute(handle, attribute, static_cast<void*>(&bytes)) != CUDA_SUCCESS) return std::nullopt;
  return bytes;
}
}  // namespace

void DriverPools::add(CUmemoryPool handle, int device) {
  const MutexLock lock(mutex_);
  try {
    pools_.push_back({handle, device, ++added_});
  } catch (const std::bad_alloc&) {  // the program's own call has succeeded already: the pool is just not asked
  }
}

void DriverPools::remove(CUmemoryPool handle, Clock& clock) {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const auto known = std::find_if(pools_.begin(), pools_.end(), [handle](const Known& one) { return one.handle == handle; });
      if (known == pools_.end()) return;
      known->is_ending = true;
      if (known->pins == 0) {
        pools_.erase(known);
        return;
      }
    }
    clock.pause(kDriverCallPause_ns);
  }
}

/// Pins the next pool of `device` after `*number`, which becomes its number; null: there is none.
CUmemoryPool DriverPools::pin_after(std::uint64_t* number, int device) {
  const MutexLock lock(mutex_);
  const auto next =
      std::find_if(pools_.begin(), pools_.end(), [&](const Known& one) { return one.number > *number && one.device == device && !one.is_ending; });
  if (next == pools_.end()) return nullptr;
  ++next->pins;
  *number = next->number;
  return next->handle;
}

void DriverPools::unpin(std::uint64_t number) {
  const MutexLock lock(mutex_);
  for (Known& one : pools_)
    if (one.number == number) --one.pins;
}

template <class Visit> void DriverPools::for_each(const Driver& driver, int device, bool also_default, Visit&& visit) {
  CUmemoryPool standard = nullptr;
  if (also_default && driver.has_cuDeviceGetDefaultMemPool() && driver.cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS) visit(standard);
  std::uint64_t number = 0;
  while (const CUmemoryPool handle = pin_after(&number, device)) {
    visit(handle);
    unpin(number);
  }
}

PoolIdle DriverPools::ask(const Driver& driver, int device, bool also_default, CUmemoryPool named) {
  PoolIdle sum;
  if (!driver.has_cuMemPoolGetAttribute()) return sum;
  for_each(driver, device, also_default, [&](CUmemoryPool handle) {
    const std::optional<std::uint64_t> reserved = told(driver, handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    const std::optional<std::uint64_t> used = told(driver, handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    if (!used || !reserved || *reserved <= *used) return;
    const std::uint64_t threshold_bytes = told(driver, handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).value_or(0);
    const std::uint64_t kept_bytes = std::min(*reserved, std::max(threshold_bytes, *used)) - *used;
    sum.bytes += *reserved - *used;
    sum.kept_bytes += kept_bytes;
    if (handle == named) sum.named_kept_bytes += kept_bytes;
    sum.counts_requested = sum.counts_requested || *used % kBlockAlignment_bytes != 0;
  });
  return sum;
}

std::uint64_t DriverPools::trim(const Driver& driver, int device, bool also_default, std::uint64_t wanted_bytes) {
  std::uint64_t trimmed_bytes = 0;
  if (!driver.has_cuMemPoolGetAttribute() || !driver.has_cuMemPoolTrimTo()) return trimmed_bytes;
  for_each(driver, device, also_default, [&](CUmemoryPool handle) {
    if (trimmed_bytes >= wanted_bytes) return;
    const std::optional<std::uint64_t> before = told(driver, handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    const std::optional<std::uint64_t> used = told(driver, handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    if (!before || !used || *before <= *used || driver.cuMemPoolTrimTo(handle, 0) != CUDA_SUCCESS) return;
    const std::uint64_t after_bytes = told(driver, handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT).value_or(*before);
    trimmed_bytes += saturating_sub(*before, after_bytes);
  });
  return trimmed_bytes;
}

}  // namespace cupool::device
