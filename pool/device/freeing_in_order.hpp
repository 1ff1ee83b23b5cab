// Memory that no work touches any more goes back to the driver in the order of a private, idle stream of its context (cuMemFreeAsync), since
// cuMemFree waits for all work of the device.
// Thread rule: for each call the context is pinned and the device's lock is not held.
#pragma once

#include <cuda.h>

#include "pool/device/device_state.hpp"

namespace cupool::device {

struct ContextPool;

namespace in_order {

inline constexpr std::uint64_t kQuietBound_ns = 500'000;  ///< an event takes 0.6 us to record and to query on an idle H100

/// The context's private stream, made at its first use; null: use cuMemFree.
CUstream stream_of(DeviceState& device, ContextPool& home);
/// Frees the region in the order of `stream`, or by cuMemFree where it is null. Returns the driver's answer.
CUresult free(DeviceState& device, CUstream stream, CUdeviceptr address);
/// Waits, at most 2 ms, until what was freed in `stream` is the device's again. False: it may not be yet.
bool await(DeviceState& device, ContextPool& home, CUstream stream);

/// Is no work running that cuMemFree would wait for? Records an event in every context (`only`: of that device) and polls for up to kQuietBound_ns.
/// Precondition: can_look().
bool is_quiet(DeviceState& device, const DeviceState* only = nullptr);
/// Does no work touch what is free any more, so that it may go back to the driver or to other addresses? Under CUPOOL_FREE=immediate the caller orders
/// the reuse of its blocks but not that: then records an event in every context and polls for a second at most. Always true
/// while something captures.
bool is_untouched(DeviceState& device);
/// Does the driver have events that cover a context?
bool can_look(const DeviceState& device);

}  // namespace in_order
}  // namespace cupool::device
