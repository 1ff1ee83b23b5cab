// Memory that leaves the process: handles as file descriptors, and dma-buf descriptors of address ranges.
// Source: CUDA Driver API 13.0, "Virtual Memory Management", cuMemGetHandleForAddressRange.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/sim/vmm_calls.hpp"

using namespace cusim;

namespace cusim {

PhysicalMemory* find_physical(Call& c, CUmemGenericAllocationHandle handle) {
  const auto found = c.sim.physical.find(handle);
  if (found == c.sim.physical.end() || found->second->references == 0) {
    c.sim.violate(c.name() + " of a physical handle that is released or unknown");
    return nullptr;
  }
  return found->second.get();
}

}  // namespace cusim

namespace {

constexpr std::size_t kHostPageBytes = 4096;

/// Memory that a network card may reach: of cuMemAlloc or a pool (an H100, driver 580), to the end of its last host page, or mapped without
/// a hole, on one device, of handles with the same properties.
bool is_one_buffer(Call& c, CUdeviceptr address, std::size_t bytes) {
  const Allocation* first = c.sim.find_memory(address);
  if (first == nullptr || first->host != nullptr) return false;
  if (first->kind == MemoryKind::device || first->kind == MemoryKind::stream_ordered) {
    const CUdeviceptr end = (first->base + first->bytes + kHostPageBytes - 1) / kHostPageBytes * kHostPageBytes;
    return bytes <= end - address;
  }
  if (first->kind != MemoryKind::mapped) return false;
  for (CUdeviceptr at = address; at < address + bytes;) {
    const Allocation* piece = c.sim.find_memory(at);
    if (piece == nullptr || piece->kind != MemoryKind::mapped || piece->device != first->device) return false;
    const CUmemAllocationProp& one = piece->mapping->physical->properties;
    if (std::memcmp(&one, &first->mapping->physical->properties, sizeof one) != 0) return false;
    at = piece->base + piece->bytes;
  }
  return true;
}

/// A descriptor of the file that holds the bytes, positioned at the first of them.
CUresult export_range(Call& c, int* out, CUdeviceptr address) {
  const Allocation& memory = *c.sim.find_memory(address);
  const std::string path = "/proc/self/fd/" + std::to_string(c.sim.file_of(memory));
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  lseek(descriptor, static_cast<off_t>(memory.file_offset + (address - memory.base)), SEEK_SET);
  *out = descriptor;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemGetHandleForAddressRange(void* out, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type, unsigned long long flags) {
  return call(Symbol::cuMemGetHandleForAddressRange, [&](Call& c) -> CUresult {
    if (out == nullptr || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) return CUDA_ERROR_INVALID_VALUE;
    if (bytes == 0 || bytes % kHostPageBytes != 0 || address % kHostPageBytes != 0) return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE) return CUDA_ERROR_NOT_SUPPORTED;  // an H100, driver 580
    if (flags != 0 || !is_one_buffer(c, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return export_range(c, static_cast<int*>(out), address);
  });
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
  return call(Symbol::cuMemExportToShareableHandle, [&](Call& c) -> CUresult {
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    PhysicalMemory* memory = find_physical(c, handle);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    // Only what was created for it may be exported.
    if ((memory->properties.requestedHandleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
    const int descriptor = c.sim.physical_store.export_descriptor(*memory);
    if (descriptor < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    memory->exported = true;
    std::memcpy(out, &descriptor, sizeof descriptor);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* os_handle, CUmemAllocationHandleType type) {
  return call(Symbol::cuMemImportFromShareableHandle, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    auto memory = std::make_unique<PhysicalMemory>();
    if (!PhysicalStore::import_descriptor(static_cast<int>(as_number(os_handle)), *memory)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    memory->handle = c.sim.new_handle();
    memory->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    memory->properties.requestedHandleTypes = type;
    memory->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    memory->properties.location.id = memory->device;
    *out = memory->handle;
    c.sim.physical.emplace(memory->handle, std::move(memory));
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
