// What the program is told when memory is refused: see refusals.hpp.
#include "pool/device/refusals.hpp"

#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "pool/core/bytes.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

Error Refusals::fail(DeviceState& device, std::uint64_t requested_bytes, const Refused& what, const ContextPool* home, Error refusal) {
  device.counters().failed_allocations.add();
  if (refusal.code != CUDA_ERROR_OUT_OF_MEMORY) return refusal;
  try {
    note_oom(device, requested_bytes, what, home, refusal);
  } catch (const std::bad_alloc&) {  // there is no telling of it; it is refused all the same
  }
  return refusal;
}

/// The driver knows nothing of a limit, or of a size that overflows; it is asked whether it has another reason to refuse. If so the failure is not
/// recorded as out of memory.
Error Refusals::reason_of(DeviceState& device, Error refusal) {
  const std::string_view where = refusal.where;
  if (refusal.code != CUDA_ERROR_OUT_OF_MEMORY || (!where.empty() && where != kLimitRefusal) || !device.services.may_call_driver()) return refusal;
  const MutexUnlock unlocked(device.lock);
  const RelaxedCaptureMode relaxed(device.driver);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const CUresult code = device.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  return is_of_earlier_work(code) || is_context_gone(code) || is_lost(device.driver, code) ? Error{code, "cuMemGetInfo_v2"} : refusal;
}

Error Refusals::fail_by_limit(DeviceState& device, std::uint64_t requested_bytes, const Refused& what, const PoolSet::AskDriver& ask) {
  if (!ask) return fail(device, requested_bytes, what, nullptr, reason_of(device, {CUDA_ERROR_OUT_OF_MEMORY, kLimitRefusal}));
  CUresult reason = CUDA_ERROR_OUT_OF_MEMORY;
  if (device.services.may_call_driver()) {
    const MutexUnlock unlocked(device.lock);
    reason = ask();
  }
  // [?] A driver may call the size itself invalid; a program that has reached its limit must be told of memory.
  const bool is_other = reason != CUDA_SUCCESS && reason != CUDA_ERROR_INVALID_VALUE && reason != CUDA_ERROR_OUT_OF_MEMORY;
  return fail(device, requested_bytes, what, nullptr, {is_other ? reason : CUDA_ERROR_OUT_OF_MEMORY, kLimitRefusal});
}

void Refusals::warn(DeviceState& device, const char* api) {
  if (told_++ >= kMostTold || !device.services.may_call_driver()) return;
  magazines_.close_all(device);
  const std::optional<std::uint64_t> driver_free_bytes = driver_free_.ask(device);
  const auto mib = [](std::uint64_t bytes) { return std::to_string(bytes / kMiB) + " MiB"; };
  const std::uint64_t reserved_bytes = device.counters().reserved_bytes.now();
  device.services.warn(std::string(api) + ": the driver has not enough memory on GPU " + std::to_string(device.ordinal) + " for it (" +
                       (driver_free_bytes ? mib(*driver_free_bytes) + " free" : "free: unknown") + "); the pool has " + mib(reserved_bytes) +
                       ", of these " + mib(figures_.sum(device).free_bytes) + " free beside other blocks");
}

}  // namespace cupool::device
