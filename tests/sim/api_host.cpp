// Host memory that the driver pins, registered host memory, managed memory.
#include <sys/mman.h>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

/// Fresh host pages as a region of `kind`, owned by the current context.
CUresult map_host(Call& c, std::size_t bytes, unsigned flags, MemoryKind kind, std::byte** out) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(c.sim.forbid_while_capturing());
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = std::make_unique<Allocation>();
  memory->base = as_number(pages);
  memory->bytes = bytes;
  memory->kind = kind;
  memory->live = true;
  memory->flags = flags;
  memory->device = context->device;
  memory->buffer_id = next_buffer_id();
  memory->host = static_cast<std::byte*>(pages);
  *out = memory->host;
  c.sim.adopt(*memory, *context);
  c.sim.regions.emplace(memory->base, std::move(memory));
  return CUDA_SUCCESS;
}

CUresult allocate_host(Call& c, void** out, std::size_t bytes, unsigned flags) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr unsigned kKnown = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::byte* pages = nullptr;
  CUSIM_TRY(map_host(c, bytes, flags, MemoryKind::host, &pages));
  *out = pages;
  return CUDA_SUCCESS;
}

/// The region that starts at `pointer` and is of `kind`, or null.
Allocation* region_at(Call& c, const void* pointer, MemoryKind kind) {
  const auto found = c.sim.regions.find(as_number(pointer));
  return found != c.sim.regions.end() && found->second->kind == kind ? found->second.get() : nullptr;
}

CUresult register_host(Call& c, void* pointer, std::size_t bytes, unsigned flags) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if (pointer == nullptr || bytes == 0 || (flags & ~kKnown) != 0 || is_device_address(as_number(pointer))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUdeviceptr base = as_number(pointer);
  const auto after = c.sim.regions.lower_bound(base + bytes);
  if (after != c.sim.regions.begin()) {
    const Allocation& before = *std::prev(after)->second;
    if (before.base + before.bytes > base) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  CUSIM_TRY(c.sim.forbid_while_capturing());
  auto memory = std::make_unique<Allocation>();
  memory->base = base;
  memory->bytes = bytes;
  memory->kind = MemoryKind::registered;
  memory->live = true;
  memory->flags = flags;
  memory->device = context->device;
  memory->buffer_id = next_buffer_id();
  memory->host = static_cast<std::byte*>(pointer);
  c.sim.adopt(*memory, *context);
  c.sim.regions.emplace(base, std::move(memory));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return call(Symbol::cuMemHostAlloc, [&](Call& c) { return allocate_host(c, out, bytes, flags); });
}
CUresult cuMemAllocHost_v2(void** out, size_t bytes) {
  return call(Symbol::cuMemAllocHost_v2, [&](Call& c) { return allocate_host(c, out, bytes, 0); });
}
CUresult cuMemAllocHost(void** out, unsigned bytes) {
  return call(Symbol::cuMemAllocHost, [&](Call& c) { return allocate_host(c, out, bytes, 0); });
}

CUresult cuMemFreeHost(void* pointer) {
  return call(Symbol::cuMemFreeHost, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    if (pointer == nullptr) return CUDA_SUCCESS;
    CUSIM_TRY(c.sim.forbid_while_capturing());
    Allocation* memory = region_at(c, pointer, MemoryKind::host);
    if (memory == nullptr) {
      c.sim.violate("cuMemFreeHost of an address that is not the base of pinned host memory");
      return CUDA_ERROR_INVALID_VALUE;
    }
    Context& owner = *memory->context;
    c.sim.wait_for_context(owner, c.lock);
    memory = region_at(c, pointer, MemoryKind::host);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    c.sim.release(*memory);
    return owner.broken;
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
  return call(Symbol::cuMemHostGetDevicePointer_v2, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const Allocation* memory = c.sim.find_memory(as_number(pointer));
    if (memory == nullptr || memory->host == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = as_number(pointer);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
  return call(Symbol::cuMemHostGetFlags, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Allocation* memory = region_at(c, pointer, MemoryKind::host);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = memory->flags | CU_MEMHOSTALLOC_DEVICEMAP;  // always mapped with unified addressing
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return call(Symbol::cuMemHostRegister_v2, [&](Call& c) { return register_host(c, pointer, bytes, flags); });
}
CUresult cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return call(Symbol::cuMemHostRegister, [&](Call& c) { return register_host(c, pointer, bytes, flags); });
}

CUresult cuMemHostUnregister(void* pointer) {
  return call(Symbol::cuMemHostUnregister, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Allocation* memory = region_at(c, pointer, MemoryKind::registered);
    if (memory == nullptr) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    CUSIM_TRY(c.sim.forbid_while_capturing());
    c.sim.release(*memory);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  return call(Symbol::cuMemAllocManaged, [&](Call& c) -> CUresult {
    const bool is_known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
    if (out == nullptr || !is_known) return CUDA_ERROR_INVALID_VALUE;
    std::byte* pages = nullptr;
    CUSIM_TRY(map_host(c, bytes, flags, MemoryKind::managed, &pages));
    *out = as_number(pages);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
