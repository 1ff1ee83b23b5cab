// Calls that frameworks make when they start and that a memory shim only has to let through: limits, cache preferences, links between devices,
// loading mode, hints for managed memory, the profiler's switch. Values are kept and told back; none has an effect here.
// Source: CUDA Driver API 13.0.
#include <cstdlib>
#include <cstring>

#include "tests/sim/graph_nodes.hpp"

using namespace cusim;

namespace {

template <class Body> CUresult with_current(Symbol symbol, Body&& body) {
  return call(symbol, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    return body(c, *context);
  });
}

/// What an untouched context of an H100 answers (driver 580); null for a limit that it does not have.
std::size_t* limit_of(Context& context, CUlimit limit) {
  static constexpr std::size_t kDefaults[] = {1024, 8448U << 10, 8U << 20, 0, 2048, 64, 9600U << 10};
  if (limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE || limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) return nullptr;
  return &context.limits.try_emplace(limit, kDefaults[limit]).first->second;
}

/// Hints are for managed memory [?: pageable memory is taken by the real one too, where the device supports it].
CUresult check_managed(Call& c, CUdeviceptr address, std::size_t bytes) {
  const Allocation* memory = c.sim.find_memory(address);
  const bool is_managed = memory != nullptr && memory->kind == MemoryKind::managed;
  if (bytes == 0 || !is_managed || bytes > memory->bytes - (address - memory->base)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult check_target(Call& c, int device) {
  Device* found = nullptr;
  return device == CU_DEVICE_CPU ? CUDA_SUCCESS : c.device(device, &found);
}

CUresult check_target(Call& c, const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return check_target(c, location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

template <class Target> CUresult prefetch(Symbol symbol, CUdeviceptr address, std::size_t bytes, Target target, CUstream handle) {
  return call(symbol, [&](Call& c) -> CUresult {
    Stream* stream = nullptr;
    CUSIM_TRY(c.stream(handle, &stream));
    CUSIM_TRY(check_managed(c, address, bytes));
    CUSIM_TRY(check_target(c, target));
    Work work;
    work.duration_ns = c.sim.settings.copy_ns;
    return c.sim.enqueue(*stream, std::move(work), c.lock);
  });
}

template <class Target> CUresult advise(Symbol symbol, CUdeviceptr address, std::size_t bytes, CUmem_advise advice, Target target) {
  return with_current(symbol, [&](Call& c, Context&) -> CUresult {
    CUSIM_TRY(check_managed(c, address, bytes));
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) return CUDA_ERROR_INVALID_VALUE;
    // Who accesses and where to stay name a device; the other hints ignore it.
    const bool names_device =
        advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    return names_device ? check_target(c, target) : CUDA_SUCCESS;
  });
}

CUresult stream_contexts(Symbol symbol, CUstream handle, CUcontext* context, CUgreenCtx* green) {
  return call(symbol, [&](Call& c) -> CUresult {
    Stream* stream = nullptr;
    CUSIM_TRY(c.stream(handle, &stream));
    if (context == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // A stream of a green context has no other context.
    *context = stream->context->parent != nullptr ? nullptr : as_handle(stream->context);
    *green = reinterpret_cast<CUgreenCtx>(stream->context->green_handle);
    return CUDA_SUCCESS;
  });
}

CUresult update_dependencies(Symbol symbol, CUstream handle, const CUgraphNode* nodes, std::size_t count, unsigned flags) {
  return call(symbol, [&](Call& c) -> CUresult {
    Stream* stream = nullptr;
    CUSIM_TRY(c.stream(handle, &stream));
    if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (nodes == nullptr && count != 0)) return CUDA_ERROR_INVALID_VALUE;
    std::set<std::size_t> wanted;
    const std::vector<Node>& known = stream->capture->graph->nodes;
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t index = 0;
      while (index < known.size() && as_node(known[index]) != nodes[i]) ++index;
      if (index == known.size()) return CUDA_ERROR_INVALID_VALUE;
      wanted.insert(index);
    }
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->capture_frontier.clear();
    stream->capture_frontier.insert(wanted.begin(), wanted.end());
    return CUDA_SUCCESS;
  });
}

template <class Value> CUresult tell(Symbol symbol, Value* out, Value Context::*member) {
  return with_current(symbol, [&](Call&, Context& context) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = context.*member;
    return CUDA_SUCCESS;
  });
}

}  // namespace

extern "C" {

CUresult cuCtxGetLimit(size_t* out, CUlimit limit) {
  return with_current(Symbol::cuCtxGetLimit, [&](Call&, Context& context) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t* value = limit_of(context, limit);
    if (value == nullptr) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *out = *value;
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxSetLimit(CUlimit limit, size_t wanted) {
  return with_current(Symbol::cuCtxSetLimit, [&](Call&, Context& context) -> CUresult {
    std::size_t* value = limit_of(context, limit);
    if (value == nullptr) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY && wanted > 128) return CUDA_ERROR_INVALID_VALUE;
    *value = wanted;
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxGetCacheConfig(CUfunc_cache* out) { return tell(Symbol::cuCtxGetCacheConfig, out, &Context::cache_preference); }
CUresult cuCtxSetCacheConfig(CUfunc_cache wanted) {
  return with_current(Symbol::cuCtxSetCacheConfig, [&](Call&, Context& context) -> CUresult {
    if (wanted < CU_FUNC_CACHE_PREFER_NONE || wanted > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
    context.cache_preference = wanted;
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxGetSharedMemConfig(CUsharedconfig* out) { return tell(Symbol::cuCtxGetSharedMemConfig, out, &Context::shared_memory_preference); }
CUresult cuCtxSetSharedMemConfig(CUsharedconfig wanted) {
  return with_current(Symbol::cuCtxSetSharedMemConfig, [&](Call&, Context& context) -> CUresult {
    if (wanted < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE || wanted > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    context.shared_memory_preference = wanted;
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxSetFlags(unsigned flags) {
  return with_current(Symbol::cuCtxSetFlags, [&](Call&, Context& context) -> CUresult {
    if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) return CUDA_ERROR_INVALID_VALUE;
    context.flags = flags;
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxResetPersistingL2Cache(void) {
  return with_current(Symbol::cuCtxResetPersistingL2Cache, [](Call&, Context&) { return CUDA_SUCCESS; });
}

CUresult cuCtxGetDevice_v2(CUdevice* out, CUcontext handle) {
  return call(Symbol::cuCtxGetDevice_v2, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.named_or_current(handle, &context));
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = context->device;
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxSynchronize_v2(CUcontext handle) {
  return call(Symbol::cuCtxSynchronize_v2, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.named_or_current(handle, &context));
    if (context->broken != CUDA_SUCCESS) return context->broken;
    CUSIM_TRY(c.sim.conflict_with_captures(*context));
    CUSIM_TRY(c.sim.forbid_while_capturing());
    c.sim.wait_for_context(*context, c.lock);
    return context->broken;
  });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* out, const char* text) {
  return call(Symbol::cuDeviceGetByPCIBusId, [&](Call& c) -> CUresult {
    if (out == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // [domain:]bus:device[.function]
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned slot = 0;
    if (std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
      domain = 0;
      if (std::sscanf(text, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t i = 0; i < c.sim.devices.size(); ++i) {
      if (domain != 0 || slot != 0 || bus != 0x10 + static_cast<unsigned>(c.sim.devices[i]->setting.physical_index)) continue;
      *out = static_cast<CUdevice>(i);
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
  });
}
CUresult cuDeviceGetP2PAttribute(int* out, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
  return call(Symbol::cuDeviceGetP2PAttribute, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(from, &device));
    CUSIM_TRY(c.device(to, &device));
    if (from == to) return CUDA_ERROR_INVALID_DEVICE;
    if (out == nullptr || attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        attribute > CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK || attribute == CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED ? 0 : 1;
    return CUDA_SUCCESS;
  });
}
CUresult cuDeviceGetExecAffinitySupport(int* out, CUexecAffinityType type, CUdevice ordinal) {
  return call(Symbol::cuDeviceGetExecAffinitySupport, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    if (out == nullptr || type >= CU_EXEC_AFFINITY_TYPE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *out = 0;  // needs MPS
    return CUDA_SUCCESS;
  });
}
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* out) {
  return call(Symbol::cuModuleGetLoadingMode, [&](Call&) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const char* chosen = std::getenv("CUDA_MODULE_LOADING");
    *out = chosen != nullptr && std::strcmp(chosen, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  return stream_contexts(Symbol::cuStreamGetCtx_v2, stream, context, green);
}
CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  return stream_contexts(Symbol::cuStreamGetCtx_v2_ptsz, per_thread(stream), context, green);
}
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
  return update_dependencies(Symbol::cuStreamUpdateCaptureDependencies, stream, nodes, count, flags);
}
CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
  return update_dependencies(Symbol::cuStreamUpdateCaptureDependencies_ptsz, per_thread(stream), nodes, count, flags);
}
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData*, size_t count, unsigned flags) {
  return update_dependencies(Symbol::cuStreamUpdateCaptureDependencies_v2, stream, nodes, count, flags);
}
CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData*, size_t count, unsigned flags) {
  return update_dependencies(Symbol::cuStreamUpdateCaptureDependencies_v2_ptsz, per_thread(stream), nodes, count, flags);
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return prefetch(Symbol::cuMemPrefetchAsync, address, bytes, device, stream);
}
CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return prefetch(Symbol::cuMemPrefetchAsync_ptsz, address, bytes, device, per_thread(stream));
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation target, unsigned flags, CUstream stream) {
  if (flags != 0) target.type = CU_MEM_LOCATION_TYPE_INVALID;
  return prefetch(Symbol::cuMemPrefetchAsync_v2, address, bytes, target, stream);
}
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation target, unsigned flags, CUstream stream) {
  if (flags != 0) target.type = CU_MEM_LOCATION_TYPE_INVALID;
  return prefetch(Symbol::cuMemPrefetchAsync_v2_ptsz, address, bytes, target, per_thread(stream));
}
CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return advise(Symbol::cuMemAdvise, address, bytes, advice, device);
}
CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation target) {
  return advise(Symbol::cuMemAdvise_v2, address, bytes, advice, target);
}

CUresult cuProfilerStart(void) {
  return with_current(Symbol::cuProfilerStart, [](Call&, Context&) { return CUDA_SUCCESS; });
}
CUresult cuProfilerStop(void) {
  return with_current(Symbol::cuProfilerStop, [](Call&, Context&) { return CUDA_SUCCESS; });
}

}  // extern "C"
