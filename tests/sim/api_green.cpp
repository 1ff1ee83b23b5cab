// Green contexts: a primary context with a part of the device's multiprocessors.
//
// Memory, sticky errors and peers are the primary's; streams and work are the green context's own, and
// the primary's synchronisations and cuCtxRecordEvent cover them. Source: CUDA Driver API 13.0, "Green Contexts".
#include <cstring>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

constexpr unsigned kMultiprocessors = 132;
constexpr unsigned kSmallestPart = 8;
constexpr std::uint64_t kDescriptorMark = 0xd5c0'0000'0000'0000;  ///< a descriptor names its device, and nothing else is known of it

void fill(CUdevResource* out, unsigned multiprocessors) {
  std::memset(out, 0, sizeof *out);
  out->type = CU_DEV_RESOURCE_TYPE_SM;
  out->sm.smCount = multiprocessors;
  out->sm.minSmPartitionSize = kSmallestPart;
  out->sm.smCoscheduledAlignment = kSmallestPart;
}

Context* find_green(Call& c, CUgreenCtx handle) {
  for (const auto& context : c.sim.contexts) {
    if (context->parent != nullptr && context->green_handle == as_number(handle)) return context.get();
  }
  return nullptr;
}

CUresult live_green(Call& c, CUgreenCtx handle, Context** out) {
  *out = find_green(c, handle);
  if (*out == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return (*out)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult create_green(Call& c, CUgreenCtx* out, CUdevResourceDesc descriptor, CUdevice ordinal, unsigned flags) {
  Device* device = nullptr;
  CUSIM_TRY(c.device(ordinal, &device));
  if (out == nullptr || (flags & CU_GREEN_CTX_DEFAULT_STREAM) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (as_number(descriptor) != kDescriptorMark + static_cast<unsigned>(ordinal)) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(c.sim.forbid_while_capturing());
  CUSIM_TRY(c.sim.retain_primary(*device, c.lock));
  Context* green = c.sim.create_context(ordinal, false, device->primary->flags);
  green->parent = device->primary;
  std::vector<Context*>& siblings = device->primary->green;
  std::erase_if(siblings, [&](const Context* other) { return !other->alive || other == green; });
  siblings.push_back(green);
  green->green_handle = c.sim.new_handle();
  *out = reinterpret_cast<CUgreenCtx>(green->green_handle);
  return CUDA_SUCCESS;
}

/// Returns while its work runs (an H100, driver 580), which the primary then waits for. Its streams live on, and answer CONTEXT_IS_DESTROYED.
CUresult destroy_green(Call& c, CUgreenCtx handle) {
  Context* green = nullptr;
  CUSIM_TRY(live_green(c, handle, &green));
  CUSIM_TRY(c.sim.forbid_while_capturing());
  c.sim.forget_captures_of(*green);
  Device& device = c.device_of(*green);
  if (const OperationPtr rest = c.sim.context_marker(*green, c.lock)) {
    device.primary->orphans.push_back(c.sim.submit(*device.primary, Work{}, {rest}, c.lock));
  }
  green->alive = false;
  green->destroyed = true;
  if (device.primary->references > 0 && --device.primary->references == 0) return c.sim.end_context(*device.primary, c.lock);
  return CUDA_SUCCESS;
}

CUresult create_stream(Call& c, CUstream* out, CUgreenCtx handle, unsigned flags, int priority) {
  Context* green = nullptr;
  CUSIM_TRY(live_green(c, handle, &green));
  if (out == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *out = c.sim.create_stream(*green, flags, priority);
  return CUDA_SUCCESS;
}

CUresult record(Call& c, CUgreenCtx handle, CUevent event_handle) {
  Context* green = nullptr;
  CUSIM_TRY(live_green(c, handle, &green));
  Event* event = c.sim.find_event(event_handle);
  if (event == nullptr || event->context->memory_owner() != green->memory_owner()) return CUDA_ERROR_INVALID_HANDLE;
  CUSIM_TRY(c.sim.conflict_with_captures(*green));
  event->operation = c.sim.context_marker(*green, c.lock);
  event->capture = nullptr;
  event->recorded = true;
  return CUDA_SUCCESS;
}

CUresult wait_event(Call& c, CUgreenCtx handle, CUevent event_handle) {
  Context* green = nullptr;
  CUSIM_TRY(live_green(c, handle, &green));
  Event* event = c.sim.find_event(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUSIM_TRY(c.sim.conflict_with_captures(*green));
  if (event->complete()) return CUDA_SUCCESS;
  green->gate = c.sim.submit(*green, Work{}, {green->gate, event->operation}, c.lock);
  return CUDA_SUCCESS;
}

/// Equal parts of at least `minimum` multiprocessors each.
CUresult split(CUdevResource* out, unsigned* count, const CUdevResource* input, CUdevResource* rest, unsigned minimum) {
  if (count == nullptr || input == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (minimum > input->sm.smCount) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const unsigned part = std::max(kSmallestPart, (minimum + kSmallestPart - 1) / kSmallestPart * kSmallestPart);
  const unsigned most = input->sm.smCount / part;
  *count = out == nullptr ? most : std::min(*count, most);
  for (unsigned i = 0; out != nullptr && i < *count; ++i) fill(&out[i], part);
  if (rest != nullptr) fill(rest, input->sm.smCount - *count * part);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource* out, CUdevResourceType type) {
  return call(Symbol::cuDeviceGetDevResource, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    fill(out, kMultiprocessors);
    // So that a descriptor knows its device; the real structure carries it as well.
    std::memcpy(out->_internal_padding, &ordinal, sizeof ordinal);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* out, unsigned* count, const CUdevResource* input, CUdevResource* rest, unsigned,
                                     unsigned minimum) {
  return call(Symbol::cuDevSmResourceSplitByCount, [&](Call&) -> CUresult {
    CUSIM_TRY(split(out, count, input, rest, minimum));
    for (unsigned i = 0; out != nullptr && i < *count; ++i) {
      std::memcpy(out[i]._internal_padding, input->_internal_padding, sizeof input->_internal_padding);
    }
    if (rest != nullptr) std::memcpy(rest->_internal_padding, input->_internal_padding, sizeof input->_internal_padding);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* out, CUdevResource* resources, unsigned count) {
  return call(Symbol::cuDevResourceGenerateDesc, [&](Call&) -> CUresult {
    if (out == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    int device = 0;
    std::memcpy(&device, resources[0]._internal_padding, sizeof device);
    for (unsigned i = 0; i < count; ++i) {
      if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
      if (std::memcmp(resources[i]._internal_padding, &device, sizeof device) != 0) {
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
      }
    }
    *out = reinterpret_cast<CUdevResourceDesc>(kDescriptorMark + static_cast<unsigned>(device));
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc descriptor, CUdevice device, unsigned flags) {
  return call(Symbol::cuGreenCtxCreate, [&](Call& c) { return create_green(c, out, descriptor, device, flags); });
}
CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  return call(Symbol::cuGreenCtxDestroy, [&](Call& c) { return destroy_green(c, green); });
}
CUresult cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx handle) {
  return call(Symbol::cuCtxFromGreenCtx, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* green = nullptr;
    CUSIM_TRY(live_green(c, handle, &green));
    *out = as_handle(green);
    return CUDA_SUCCESS;
  });
}
CUresult cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx green, unsigned flags, int priority) {
  return call(Symbol::cuGreenCtxStreamCreate, [&](Call& c) { return create_stream(c, out, green, flags, priority); });
}
CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
  return call(Symbol::cuGreenCtxRecordEvent, [&](Call& c) { return record(c, green, event); });
}
CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
  return call(Symbol::cuGreenCtxWaitEvent, [&](Call& c) { return wait_event(c, green, event); });
}
CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* out) {
  return call(Symbol::cuStreamGetGreenCtx, [&](Call& c) -> CUresult {
    Stream* stream = nullptr;
    CUSIM_TRY(c.stream(handle, &stream));
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUgreenCtx>(stream->context->green_handle);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
