// Stream-ordered allocation and memory pools. Source: CUDA Driver API 13.0, "Stream Ordered Memory Allocator".
#include <algorithm>
#include <cstring>

#include "tests/sim/graph_nodes.hpp"
#include "tests/sim/pool_calls.hpp"

using namespace cusim;

namespace {

CUresult find_pool(Call& c, CUmemoryPool handle, MemoryPool** out) {
  const auto found = c.sim.pools.find(as_number(handle));
  if (found == c.sim.pools.end() || found->second->destroyed) {
    c.sim.violate(c.name() + " with a memory pool that is destroyed or unknown");
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = found->second.get();
  return CUDA_SUCCESS;
}

/// The memory exists for the host at once and for the stream from its turn on.
CUresult allocate(Call& c, CUdeviceptr* out, std::size_t bytes, MemoryPool* pool, CUstream stream_handle) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(stream_handle, &stream));
  if (out == nullptr || (bytes == 0 && stream->capture != nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy) CUSIM_TRY(c.sim.forbid_implicit(*stream->context));
  if (pool == nullptr) {
    c.sim.default_pool(stream->context->device);
    pool = c.sim.devices[static_cast<std::size_t>(stream->context->device)]->current_pool;
  }
  if (stream->capture != nullptr && pool->place.is_of_host()) return c.refuse_unmodelled("an allocation node of the host, or of managed memory");
  if (stream->capture != nullptr) return capture_allocation(c, out, bytes, *pool, *stream);
  CUSIM_TRY(c.sim.forbid_while_capturing());
  if (bytes == 0) {  // taken, as by an H100 (driver 580)
    *out = 0;
    return CUDA_SUCCESS;
  }
  if (pool->place.is_of_host()) return allocate_on_host(c, out, bytes, *pool, *stream);
  const auto range = c.sim.take_pooled(*pool, bytes, *stream);
  if (!range) {
    *out = 0;  // an H200, driver 580
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::vector<OperationPtr> before = c.sim.stream_predecessors(*stream);
  before.push_back(range->freed);
  auto memory = std::make_unique<Allocation>();
  memory->base = range->backing->base + range->offset;
  memory->bytes = bytes;
  memory->kind = MemoryKind::stream_ordered;
  memory->live = true;
  memory->device = pool->device;
  memory->file_offset = range->backing->file_offset + range->offset;
  memory->buffer_id = next_buffer_id();
  memory->pool = pool;
  memory->backing = range->backing;
  memory->pooled_bytes = range->bytes;
  memory->backing->touched = true;
  memory->reused_after = range->freed;
  memory->available = c.sim.submit(*stream->context, Work{}, std::move(before), c.lock, &stream->tail);
  pool->used += bytes;
  pool->used_high = std::max(pool->used_high, pool->used);
  *out = memory->base;
  // Before its own free has run in stream order, the previous holder may still be there: it is replaced.
  c.sim.drop_stream_ordered(memory->base);
  c.sim.adopt(*memory, *stream->context);
  c.sim.regions[memory->base] = std::move(memory);
  return CUDA_SUCCESS;
}

CUresult free_graph_async(Call& c, CUdeviceptr address, Stream& stream) {
  const std::shared_ptr<GraphMemory> memory = c.sim.find_graph_memory(address);
  if (stream.legacy) CUSIM_TRY(c.sim.forbid_implicit(*stream.context));
  CUSIM_TRY(may_free_outside(c, *memory));
  CUSIM_TRY(c.sim.forbid_while_capturing());
  free_graph_memory(c, memory, stream);
  return CUDA_SUCCESS;
}

CUresult free_async(Call& c, CUdeviceptr address, CUstream stream_handle) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(stream_handle, &stream));
  if (address == 0) return CUDA_SUCCESS;
  if (stream->capture != nullptr) return capture_free(c, address, *stream);
  Allocation* memory = c.sim.find_memory(address);
  if (memory != nullptr && memory->base == address && memory->graph != nullptr) {
    return free_graph_async(c, address, *stream);
  }
  const bool known = memory != nullptr && memory->base == address && !memory->free_requested &&
                     (memory->kind == MemoryKind::stream_ordered || memory->kind == MemoryKind::device);
  if (!known) {
    c.sim.violate(c.name() + " of an address that is not allocated (double free?)");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (stream->legacy) CUSIM_TRY(c.sim.forbid_implicit(*stream->context));
  CUSIM_TRY(c.sim.forbid_while_capturing());
  const std::uint64_t id = memory->buffer_id;
  Work work;
  work.action = [&sim = c.sim, address, id] {
    // Only if it is still the same memory: the range may have been reused behind this free.
    Allocation* freed = sim.find_memory(address);
    if (freed == nullptr || freed->buffer_id != id) return;
    if (freed->kind == MemoryKind::device) {
      sim.release(*freed);
    } else {
      sim.drop_stream_ordered(address);
    }
  };
  memory->free_requested = true;
  memory->freed_on = stream->id;
  const bool pooled = memory->kind == MemoryKind::stream_ordered;
  Allocation copy = *memory;  // the action may run at once
  OperationPtr freed;
  CUSIM_TRY(c.sim.enqueue(*stream, std::move(work), c.lock, &freed));
  if (pooled) c.sim.return_to_pool(copy, freed);
  return CUDA_SUCCESS;
}

/// A pointer into the pool for a 32-bit or a 64-bit attribute; null for what is not one.
int* int_attribute(MemoryPool& pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return &pool.follow_event_dependencies;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return &pool.allow_opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return &pool.allow_internal_dependencies;
    default: return nullptr;
  }
}

std::uint64_t* long_attribute(MemoryPool& pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return &pool.release_threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool.reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool.reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool.used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool.used_high;
    default: return nullptr;
  }
}

CUresult set_attribute(MemoryPool& pool, CUmemPool_attribute attribute, const void* value) {
  if (int* flag = int_attribute(pool, attribute)) {
    std::memcpy(flag, value, sizeof *flag);
    return CUDA_SUCCESS;
  }
  std::uint64_t wanted = 0;
  std::memcpy(&wanted, value, sizeof wanted);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool.release_threshold = wanted;
    return CUDA_SUCCESS;
  }
  // The high-water marks can be reset to zero, and to nothing else.
  const bool is_mark = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
  if (!is_mark || wanted != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool.reserved_high = pool.reserved;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool.used_high = pool.used;
  return CUDA_SUCCESS;
}

template <class Body> CUresult with_pool(Symbol symbol, CUmemoryPool handle, Body&& body) {
  return call(symbol, [&](Call& c) -> CUresult {
    MemoryPool* pool = nullptr;
    CUSIM_TRY(find_pool(c, handle, &pool));
    return body(c, *pool);
  });
}

template <class Body> CUresult with_device(Symbol symbol, CUdevice ordinal, Body&& body) {
  return call(symbol, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    return body(c, *device, c.sim.default_pool(ordinal));
  });
}

/// What lets the pools of one place be asked for and changed; of a device they are those of the calls that name it.
struct PoolsOf {
  MemoryPool& standard;
  MemoryPool*& current;
};

/// A place that can have pools.
template <class Body> CUresult with_place(Symbol symbol, const CUmemLocation* location, CUmemAllocationType type, Body&& body) {
  return call(symbol, [&](Call& c) -> CUresult {
    PoolPlace place;
    CUSIM_TRY(check_place(c, location, type, &place));
    Device* device = nullptr;
    if (place.where == CU_MEM_LOCATION_TYPE_DEVICE) CUSIM_TRY(c.device(place.id, &device));
    if (place.is_of_host()) {
      PlacePools& pools = c.sim.host_pools(place);
      return body(c, PoolsOf{*pools.standard, pools.current});
    }
    MemoryPool& standard = c.sim.default_pool(place.id);
    return body(c, PoolsOf{standard, device->current_pool});
  });
}

CUresult set_current(Call& c, const PoolsOf& pools, CUmemoryPool handle) {
  MemoryPool* pool = nullptr;
  CUSIM_TRY(find_pool(c, handle, &pool));
  if (pool->place != pools.standard.place) return CUDA_ERROR_INVALID_VALUE;
  pools.current = pool;
  return CUDA_SUCCESS;
}

/// All of them or none.
CUresult set_access(Call& c, MemoryPool& pool, const CUmemAccessDesc* wanted, std::size_t count) {
  if (wanted == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    Device* device = nullptr;
    const CUmemAccess_flags flags = wanted[i].flags;
    if (wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    CUSIM_TRY(c.device(wanted[i].location.id, &device));
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!c.sim.settings.links_devices && !pool.place.is_of_host() && wanted[i].location.id != pool.device && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
      return CUDA_ERROR_INVALID_DEVICE;  // [?] the code
    }
    // Its own device always reads and writes; the codes are an H100's, driver 580.
    if (wanted[i].location.id == pool.device && flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_INVALID_DEVICE;
    if (wanted[i].location.id == pool.device && flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (wanted[i].location.id != pool.device) pool.access[wanted[i].location.id] = wanted[i].flags;
  }
  return CUDA_SUCCESS;
}

CUmemoryPool as_pool(const MemoryPool& pool) { return reinterpret_cast<CUmemoryPool>(pool.handle); }

CUresult allocate_from(Call& c, CUdeviceptr* out, std::size_t bytes, CUmemoryPool handle, CUstream stream) {
  MemoryPool* pool = nullptr;
  CUSIM_TRY(find_pool(c, handle, &pool));
  return allocate(c, out, bytes, pool, stream);
}

}  // namespace

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return call(Symbol::cuMemAllocAsync, [&](Call& c) { return allocate(c, out, bytes, nullptr, stream); });
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return call(Symbol::cuMemAllocAsync_ptsz, [&](Call& c) { return allocate(c, out, bytes, nullptr, per_thread(stream)); });
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return call(Symbol::cuMemAllocFromPoolAsync, [&](Call& c) { return allocate_from(c, out, bytes, pool, stream); });
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return call(Symbol::cuMemAllocFromPoolAsync_ptsz, [&](Call& c) { return allocate_from(c, out, bytes, pool, per_thread(stream)); });
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return call(Symbol::cuMemFreeAsync, [&](Call& c) { return free_async(c, address, stream); });
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return call(Symbol::cuMemFreeAsync_ptsz, [&](Call& c) { return free_async(c, address, per_thread(stream)); });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  return with_device(Symbol::cuDeviceGetDefaultMemPool, device, [&](Call&, Device&, MemoryPool& pool) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = as_pool(pool);
    return CUDA_SUCCESS;
  });
}
CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  return with_device(Symbol::cuDeviceGetMemPool, device, [&](Call&, Device& d, MemoryPool&) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = as_pool(*d.current_pool);
    return CUDA_SUCCESS;
  });
}
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  return with_device(Symbol::cuDeviceSetMemPool, device, [&](Call& c, Device& d, MemoryPool& standard) -> CUresult {
    return set_current(c, {standard, d.current_pool}, handle);
  });
}
CUresult cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return with_place(Symbol::cuMemGetDefaultMemPool, location, type, [&](Call&, const PoolsOf& pools) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = as_pool(pools.standard);
    return CUDA_SUCCESS;
  });
}
CUresult cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return with_place(Symbol::cuMemGetMemPool, location, type, [&](Call&, const PoolsOf& pools) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = as_pool(*pools.current);
    return CUDA_SUCCESS;
  });
}
CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool handle) {
  return with_place(Symbol::cuMemSetMemPool, location, type, [&](Call& c, const PoolsOf& pools) { return set_current(c, pools, handle); });
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  return call(Symbol::cuMemPoolCreate, [&](Call& c) -> CUresult {
    if (out == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    PoolPlace place;
    CUSIM_TRY(check_pool_properties(c, *properties, &place));
    auto pool = std::make_unique<MemoryPool>();
    pool->handle = c.sim.new_handle();
    pool->place = place;
    pool->device = place.is_of_host() ? -1 : place.id;
    pool->max_bytes = properties->maxSize;
    pool->handle_types = properties->handleTypes;
    pool->usage = properties->usage;
    *out = as_pool(*pool);
    c.sim.pools.emplace(pool->handle, std::move(pool));
    return CUDA_SUCCESS;
  });
}
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return with_pool(Symbol::cuMemPoolDestroy, handle, [&](Call& c, MemoryPool& pool) -> CUresult {
    if (pool.is_default) return CUDA_ERROR_INVALID_VALUE;
    MemoryPool*& current =
        pool.place.is_of_host() ? c.sim.host_pools(pool.place).current : c.sim.devices[static_cast<std::size_t>(pool.device)]->current_pool;
    if (current == &pool) current = pool.place.is_of_host() ? c.sim.host_pools(pool.place).standard : &c.sim.default_pool(pool.device);
    pool.destroyed = true;
    c.sim.trim_to_thresholds(pool.device);
    return CUDA_SUCCESS;
  });
}
CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes) {
  return with_pool(Symbol::cuMemPoolTrimTo, handle, [&](Call& c, MemoryPool& pool) -> CUresult {
    CUSIM_TRY(c.sim.forbid_while_capturing());
    c.sim.trim_pool(pool, keep_bytes);
    return CUDA_SUCCESS;
  });
}
CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* out) {
  return with_pool(Symbol::cuMemPoolGetAttribute, handle, [&](Call&, MemoryPool& pool) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const int* flag = int_attribute(pool, attribute)) {
      std::memcpy(out, flag, sizeof *flag);
      return CUDA_SUCCESS;
    }
    const std::uint64_t* value = long_attribute(pool, attribute);
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(out, value, sizeof *value);
    return CUDA_SUCCESS;
  });
}
CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return with_pool(Symbol::cuMemPoolSetAttribute, handle, [&](Call&, MemoryPool& pool) -> CUresult {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : set_attribute(pool, attribute, value);
  });
}
CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* descriptors, size_t count) {
  return with_pool(Symbol::cuMemPoolSetAccess, handle, [&](Call& c, MemoryPool& pool) { return set_access(c, pool, descriptors, count); });
}
CUresult cuMemPoolGetAccess(CUmemAccess_flags* out, CUmemoryPool handle, CUmemLocation* location) {
  return with_pool(Symbol::cuMemPoolGetAccess, handle, [&](Call& c, MemoryPool& pool) -> CUresult {
    if (out == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (location->type == CU_MEM_LOCATION_TYPE_HOST) {  // of a device's pool none: an H100, driver 580
      *out = pool.place.is_of_host() ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
      return CUDA_SUCCESS;
    }
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(location->id, &device));
    const auto access = pool.access.find(location->id);
    const bool is_its_own = location->id == pool.device || pool.place.is_managed();
    *out = is_its_own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : access == pool.access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : access->second;
    return CUDA_SUCCESS;
  });
}

/// What can be refused is refused; sharing itself is not modelled.
CUresult cuMemPoolExportToShareableHandle(void* out, CUmemoryPool handle, CUmemAllocationHandleType type, unsigned long long flags) {
  return with_pool(Symbol::cuMemPoolExportToShareableHandle, handle, [&](Call& c, MemoryPool& pool) -> CUresult {
    if (out == nullptr || flags != 0 || (pool.handle_types & type) == 0) return CUDA_ERROR_INVALID_VALUE;
    return c.refuse_unmodelled("a shared pool");
  });
}
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* out, CUdeviceptr address) {
  return call(Symbol::cuMemPoolExportPointer, [&](Call& c) -> CUresult {
    const Allocation* memory = c.sim.find_memory(address);
    if (out == nullptr || memory == nullptr || memory->pool == nullptr || memory->pool->handle_types == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return c.refuse_unmodelled("a shared pool");
  });
}

}  // extern "C"
