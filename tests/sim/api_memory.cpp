// Device memory: allocation, pitch, free, sizes, address ranges.
#include "tests/sim/graph_nodes.hpp"

using namespace cusim;

namespace {

CUresult allocate(Call& c, CUdeviceptr* out, std::size_t bytes) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {
    *out = 0;  // here and where memory is out: an H100, driver 580
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUSIM_TRY(c.sim.forbid_while_capturing());
  Device& device = c.device_of(*context);
  Allocation* memory = device.memory.allocate(bytes);
  if (memory == nullptr && c.sim.give_back_unused(context->device)) memory = device.memory.allocate(bytes);
  if (memory == nullptr) {
    *out = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  c.sim.adopt(*memory, *context);
  *out = memory->base;
  return CUDA_SUCCESS;
}

/// Memory of a graph keeps its address, and its bytes for the next launch.
CUresult free_of_graph(Call& c, CUdeviceptr address) {
  const std::shared_ptr<GraphMemory> memory = c.sim.find_graph_memory(address);
  CUSIM_TRY(may_free_outside(c, *memory));
  CUSIM_TRY(c.sim.forbid_while_capturing());
  memory->live = false;
  Context& owner = *memory->context;
  c.sim.wait_for_context(owner, c.lock);
  memory->on_device = false;
  return owner.broken;
}

/// A current context must be sound, but there need not be one (an H100, driver 580).
CUresult free_memory(Call& c, CUdeviceptr address) {
  Context* current = nullptr;
  if (const CUresult code = c.current(&current); code != CUDA_SUCCESS && code != CUDA_ERROR_INVALID_CONTEXT) return code;
  if (address == 0) return CUDA_SUCCESS;
  Allocation* memory = c.sim.find_memory(address);
  if (memory != nullptr && memory->base == address && memory->graph != nullptr) {
    return free_of_graph(c, address);
  }
  if (memory == nullptr || memory->base != address || memory->free_requested ||
      (memory->kind != MemoryKind::device && memory->kind != MemoryKind::managed && memory->kind != MemoryKind::stream_ordered &&
       memory->kind != MemoryKind::external)) {
    c.sim.violate(c.name() + (memory == nullptr ? " of an address that is not allocated (double free?)"
                                                : " of an address that is not the base of device memory"));
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUSIM_TRY(c.sim.forbid_while_capturing());
  if (memory->kind == MemoryKind::stream_ordered) {  // "will not perform any implicit synchronization": the caller has seen to it
    c.sim.release(*memory);
    return CUDA_SUCCESS;
  }
  Context& owner = *memory->context;
  c.sim.wait_for_context(owner, c.lock);  // not for work of the current one, where that is another: an H100, driver 580
  memory = c.sim.find_memory(address);    // the lock may have been given up
  if (memory == nullptr || memory->base != address) {
    c.sim.violate(c.name() + " raced with another free of the same memory");
    return CUDA_ERROR_INVALID_VALUE;
  }
  c.sim.release(*memory);
  return owner.broken;
}

CUresult allocate_pitch(Call& c, CUdeviceptr* out, std::size_t* pitch, std::size_t width, std::size_t height, unsigned element) {
  if (pitch == nullptr || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = (width + 511) / 512 * 512;
  if (row < width || height > SIZE_MAX / row) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(allocate(c, out, row * height));
  *pitch = row;
  return CUDA_SUCCESS;
}

CUresult memory_info(Call& c, std::size_t* free_bytes, std::size_t* total_bytes) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  const DeviceMemory& memory = c.device_of(*context).memory;
  if (free_bytes != nullptr) *free_bytes = memory.capacity_bytes() - memory.used_bytes();
  if (total_bytes != nullptr) *total_bytes = memory.capacity_bytes();
  return CUDA_SUCCESS;
}

CUresult address_range(Call& c, CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  // Of a mapping the piece of one handle, as an H100 answers (driver 580).
  const Allocation* memory = c.sim.find_known(address);
  if (memory == nullptr || (memory->kind == MemoryKind::mapped && !c.sim.settings.vmm_has_ranges)) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = memory->base;
  if (bytes != nullptr) *bytes = memory->bytes;
  return CUDA_SUCCESS;
}

/// The 32-bit forms of CUDA 2.0 cannot name this device's addresses.
CUresult refuse_legacy(Symbol symbol) {
  return call(symbol, [&](Call& c) { return c.refuse_unmodelled("an address of 32 bits"); });
}

}  // namespace

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  return call(Symbol::cuMemAlloc_v2, [&](Call& c) { return allocate(c, out, bytes); });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element) {
  return call(Symbol::cuMemAllocPitch_v2, [&](Call& c) { return allocate_pitch(c, out, pitch, width, height, element); });
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return call(Symbol::cuMemFree_v2, [&](Call& c) { return free_memory(c, address); });
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return call(Symbol::cuMemGetInfo_v2, [&](Call& c) { return memory_info(c, free_bytes, total_bytes); });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return call(Symbol::cuMemGetAddressRange_v2, [&](Call& c) { return address_range(c, base, bytes, address); });
}

CUresult cuMemAlloc(CUdeviceptr_v1*, unsigned) { return refuse_legacy(Symbol::cuMemAlloc); }
CUresult cuMemFree(CUdeviceptr_v1) { return refuse_legacy(Symbol::cuMemFree); }
CUresult cuMemGetInfo(unsigned*, unsigned*) { return refuse_legacy(Symbol::cuMemGetInfo); }
CUresult cuMemAllocPitch(CUdeviceptr_v1*, unsigned*, unsigned, unsigned, unsigned) { return refuse_legacy(Symbol::cuMemAllocPitch); }
CUresult cuMemGetAddressRange(CUdeviceptr_v1*, unsigned*, CUdeviceptr_v1) { return refuse_legacy(Symbol::cuMemGetAddressRange); }

}  // extern "C"
