// Primary and created contexts, the stack of current ones, peer access, limits.
#include "shim/newer_api.hpp"
#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

/// Charges what a context costs on its device.
CUresult charge(Call& c, Context& context) {
  if (!c.sim.devices[static_cast<std::size_t>(context.device)]->memory.charge(c.sim.settings.context_bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context.charged_bytes = c.sim.settings.context_bytes;
  return CUDA_SUCCESS;
}

CUresult create(Symbol symbol, CUcontext* out, unsigned flags, CUdevice ordinal) {
  return call(symbol, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (device->broken != CUDA_SUCCESS) return device->broken;
    CUSIM_TRY(c.sim.forbid_while_capturing());
    Context* context = c.sim.create_context(ordinal, false, flags);
    if (const CUresult code = charge(c, *context); code != CUDA_SUCCESS) {
      context->alive = false;
      context->destroyed = true;
      return code;
    }
    c.thread.stack.push_back(context);
    *out = as_handle(context);
    return CUDA_SUCCESS;
  });
}

CUresult destroy(Symbol symbol, CUcontext handle) {
  return call(symbol, [&](Call& c) -> CUresult {
    Context* context = c.sim.find_context(handle);
    if (context == nullptr || context->primary || context->parent != nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->destroyed) {
      c.sim.violate("a context was destroyed twice");
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    CUSIM_TRY(c.sim.forbid_while_capturing());
    const CUresult answer = c.sim.end_context(*context, c.lock);
    // Popped where it is current here; in other threads it stays current and answers CONTEXT_IS_DESTROYED.
    if (!c.thread.stack.empty() && c.thread.stack.back() == context) c.thread.stack.pop_back();
    return answer;
  });
}

CUresult push(Symbol symbol, CUcontext handle) {
  return call(symbol, [&](Call& c) -> CUresult {
    Context* context = c.sim.find_context(handle);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    c.thread.stack.push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult pop(Symbol symbol, CUcontext* out) {
  return call(symbol, [&](Call& c) -> CUresult {
    if (c.thread.stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (out != nullptr) *out = as_handle(c.thread.stack.back());
    c.thread.stack.pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult primary_release(Symbol symbol, CUdevice ordinal) {
  return call(symbol, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    c.sim.wait_while_ending(*device->primary, c.lock);
    if (device->primary->references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    return --device->primary->references == 0 ? c.sim.end_context(*device->primary, c.lock) : CUDA_SUCCESS;
  });
}

CUresult primary_reset(Symbol symbol, CUdevice ordinal) {
  return call(symbol, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    c.sim.wait_while_ending(*device->primary, c.lock);
    if (!device->primary->alive) return CUDA_SUCCESS;
    // The references stay: the next retain (or reset's holders) brings the same handle back to life.
    return c.sim.end_context(*device->primary, c.lock);
  });
}

CUresult primary_set_flags(Symbol symbol, CUdevice ordinal, unsigned flags) {
  return call(symbol, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) return CUDA_ERROR_INVALID_VALUE;
    device->primary->flags = flags;
    return CUDA_SUCCESS;
  });
}

}  // namespace

extern "C" {

CUresult cuCtxCreate(CUcontext* out, unsigned flags, CUdevice device) { return create(Symbol::cuCtxCreate, out, flags, device); }
CUresult cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) { return create(Symbol::cuCtxCreate_v2, out, flags, device); }
/// As if OpenGL, or VDPAU, were there.
CUresult cuGLCtxCreate(CUcontext* out, unsigned flags, CUdevice device) { return create(Symbol::cuGLCtxCreate, out, flags, device); }
CUresult cuGLCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) { return create(Symbol::cuGLCtxCreate_v2, out, flags, device); }
CUresult cuVDPAUCtxCreate(CUcontext* out, unsigned flags, CUdevice device, unsigned, void*) {
  return create(Symbol::cuVDPAUCtxCreate, out, flags, device);
}
CUresult cuVDPAUCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device, unsigned, void*) {
  return create(Symbol::cuVDPAUCtxCreate_v2, out, flags, device);
}
CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam* affinity, int count, unsigned flags, CUdevice device) {
  if (affinity != nullptr || count != 0) return CUDA_ERROR_NOT_SUPPORTED;  // needs MPS
  return create(Symbol::cuCtxCreate_v3, out, flags, device);
}
CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
  if (parameters != nullptr && (parameters->numExecAffinityParams != 0 || parameters->cigParams != nullptr)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return create(Symbol::cuCtxCreate_v4, out, flags, device);
}
CUresult cuCtxDestroy(CUcontext context) { return destroy(Symbol::cuCtxDestroy, context); }
CUresult cuCtxDestroy_v2(CUcontext context) { return destroy(Symbol::cuCtxDestroy_v2, context); }
CUresult cuCtxPushCurrent(CUcontext context) { return push(Symbol::cuCtxPushCurrent, context); }
CUresult cuCtxPushCurrent_v2(CUcontext context) { return push(Symbol::cuCtxPushCurrent_v2, context); }
CUresult cuCtxPopCurrent(CUcontext* context) { return pop(Symbol::cuCtxPopCurrent, context); }
CUresult cuCtxPopCurrent_v2(CUcontext* context) { return pop(Symbol::cuCtxPopCurrent_v2, context); }

CUresult cuCtxSetCurrent(CUcontext handle) {
  return call(Symbol::cuCtxSetCurrent, [&](Call& c) -> CUresult {
    if (handle == nullptr) {
      if (!c.thread.stack.empty()) c.thread.stack.pop_back();
      return CUDA_SUCCESS;
    }
    Context* context = c.sim.find_context(handle);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (c.thread.stack.empty()) {
      c.thread.stack.push_back(context);
    } else {
      c.thread.stack.back() = context;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* out) {
  return call_about_thread(Symbol::cuCtxGetCurrent, [&](const ThreadState& thread) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = thread.stack.empty() ? nullptr : as_handle(thread.stack.back());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice(CUdevice* out) {
  return call(Symbol::cuCtxGetDevice, [&](Call& c) -> CUresult {
    Context* context = c.thread.stack.empty() ? nullptr : c.thread.stack.back();
    const bool is_reset = context != nullptr && context->primary && !context->alive;  // still tells its device: an H200, driver 580
    if (!is_reset) CUSIM_TRY(c.current(&context));
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = context->device;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetFlags(unsigned* flags) {
  return call(Symbol::cuCtxGetFlags, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  return call(Symbol::cuCtxGetApiVersion, [&](Call& c) -> CUresult {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* context = nullptr;
    CUSIM_TRY(c.named_or_current(handle, &context));
    *version = context->api_version;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return call(Symbol::cuCtxGetId, [&](Call& c) -> CUresult {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* context = nullptr;
    CUSIM_TRY(c.named_or_current(handle, &context));
    *id = context->id;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize(void) {
  return call(Symbol::cuCtxSynchronize, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    CUSIM_TRY(c.sim.conflict_with_captures(*context));
    CUSIM_TRY(c.sim.forbid_while_capturing());
    c.sim.wait_for_context(*context, c.lock);
    return context->broken;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call(Symbol::cuCtxGetStreamPriorityRange, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  return call(Symbol::cuCtxEnablePeerAccess, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    Context* peer = c.sim.find_context(handle);
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (peer == nullptr || !peer->alive || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
    CUSIM_TRY(c.sim.forbid_while_capturing());
    if (peer->device == context->device || !c.sim.settings.links_devices) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  return call(Symbol::cuCtxDisablePeerAccess, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    const Context* peer = c.sim.find_context(handle);
    if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    return context->peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice ordinal) {
  return call(Symbol::cuDevicePrimaryCtxRetain, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    CUSIM_TRY(c.sim.retain_primary(*device, c.lock));
    *out = as_handle(device->primary);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return primary_release(Symbol::cuDevicePrimaryCtxRelease, device); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return primary_release(Symbol::cuDevicePrimaryCtxRelease_v2, device); }
CUresult cuDevicePrimaryCtxReset(CUdevice device) { return primary_reset(Symbol::cuDevicePrimaryCtxReset, device); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return primary_reset(Symbol::cuDevicePrimaryCtxReset_v2, device); }
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) { return primary_set_flags(Symbol::cuDevicePrimaryCtxSetFlags, device, flags); }
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  return primary_set_flags(Symbol::cuDevicePrimaryCtxSetFlags_v2, device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  return call(Symbol::cuDevicePrimaryCtxGetState, [&](Call& c) -> CUresult {
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    *flags = device->primary->flags;
    *active = device->primary->alive ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
