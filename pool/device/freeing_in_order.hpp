// Memory that nothing touches any more goes back to the driver in the order of a private, idle stream of its context (cuMemFreeAsync): cuMemFree
// waits for all work of the device. Each call: the context is pinned, the device's lock is not held.
#pragma once

#include <cuda.h>

#include "pool/device/device_state.hpp"

namespace cupool::device {

struct ContextPool;

namespace in_order {

inline constexpr std::uint64_t kQuietBound_ns = 500'000;  ///< an event takes 0.6 us to record and to ask for on an idle H100

/// The context's stream, made at the first use; null: by cuMemFree.
CUstream stream_of(DeviceState& device, ContextPool& home);
/// By cuMemFree where `stream` is null. The driver's answer.
CUresult free(DeviceState& device, CUstream stream, CUdeviceptr address);
/// Until what was freed in `stream` is the device's again; 2 ms at most. False: it may not be yet.
bool await(DeviceState& device, ContextPool& home, CUstream stream);

/// Does nothing run that cuMemFree would wait for? Asked by an event in every context (`only`: of that device), for kQuietBound_ns. Precondition:
/// can_look().
bool is_quiet(DeviceState& device, const DeviceState* only = nullptr);
/// Are there events that cover a context?
bool can_look(const DeviceState& device);

}  // namespace in_order
}  // namespace cupool::device
