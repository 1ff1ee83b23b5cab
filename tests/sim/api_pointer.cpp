// What the driver says about an address. Source: CUDA Driver API 13.0, "Unified Addressing".
#include <cstring>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

template <class T> CUresult answer(void* out, T value) {
  std::memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

bool is_managed(const Allocation& memory) {
  return memory.kind == MemoryKind::managed || (memory.pool != nullptr && memory.pool->place.is_managed());
}

bool is_device_kind(const Allocation& memory) { return memory.host == nullptr || is_managed(memory); }

std::uint64_t allowed_handle_types(const Allocation& memory) {
  return memory.mapping != nullptr ? memory.mapping->physical->properties.requestedHandleTypes : 0;
}

struct Piece {
  CUdeviceptr base;
  std::size_t bytes;
};

/// What the driver took of the device at once: the granules that hold a block, the piece of a pool; else the memory itself. (An H100, driver 580,
/// whose pools grow by 32 MiB.)
Piece piece_of(const Allocation& memory) {
  if (memory.backing != nullptr && memory.kind == MemoryKind::stream_ordered) return {memory.backing->base, memory.backing->bytes};
  if (memory.kind != MemoryKind::device) return {memory.base, memory.bytes};
  const CUdeviceptr base = memory.base / kGranuleBytes * kGranuleBytes;
  return {base, whole_granules(memory.base + memory.bytes - base)};
}

/// Small blocks of one granule have the same (an H100, driver 580). No buffer id is as large as an address.
unsigned long long block_id(const Allocation& memory) {
  const bool shares = memory.host == nullptr && (memory.kind == MemoryKind::device || memory.kind == MemoryKind::stream_ordered);
  return shares ? piece_of(memory).base : memory.buffer_id;
}

CUresult range_attribute(const Allocation& memory, CUpointer_attribute attribute, void* out) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return answer(out, memory.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return answer(out, memory.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return answer(out, piece_of(memory).base);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return answer(out, piece_of(memory).bytes);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

/// For the device of the current context; without one all of memory that is not mapped, none of what is (an H100, driver 580).
CUresult access_flags(Call& c, const Allocation& memory, void* out) {
  Context* context = nullptr;
  const CUresult code = c.current(&context);
  if (code == CUDA_ERROR_INVALID_CONTEXT) {
    return answer<unsigned>(out, memory.mapping != nullptr ? CU_MEM_ACCESS_FLAGS_PROT_NONE : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  CUSIM_TRY(code);
  return answer<unsigned>(out, c.sim.kernel_access(*context, memory));
}

/// [?] of a device that does not decompress; documented is where it does (cuMemBatchDecompressAsync).
bool is_decompression_capable(Call& c, const Allocation& memory) {
  if (c.sim.settings.decompression != Offer::given) return false;
  if (memory.mapping != nullptr) return (memory.mapping->physical->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS) != 0;
  if (memory.pool != nullptr) return (memory.pool->usage & CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) != 0;
  return memory.kind == MemoryKind::device;
}

/// Null for mapped memory and for what a pool or a graph gave out, whatever its stream's context, as an H100 answers (driver 580).
Context* owner_of(const Allocation& memory) { return memory.pool != nullptr || memory.graph != nullptr ? nullptr : memory.context; }

/// Writes the attribute of live memory. Attributes that do not fit the kind of memory are INVALID_VALUE.
CUresult attribute_of(Call& c, const Allocation& memory, CUdeviceptr address, CUpointer_attribute attribute, void* out) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return answer(out, as_handle(owner_of(memory)));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return answer<unsigned>(out, is_device_kind(memory) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return answer(out, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (memory.host == nullptr) return CUDA_ERROR_INVALID_VALUE;
      return answer(out, memory.host + (address - memory.base));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return answer<unsigned>(out, memory.sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return answer<unsigned long long>(out, memory.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return answer<unsigned>(out, is_managed(memory) ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer<int>(out, memory.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return answer<unsigned>(out, memory.kind == MemoryKind::device ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_MAPPED: return answer<unsigned>(out, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return answer<unsigned long long>(out, allowed_handle_types(memory));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return answer<unsigned>(out, memory.kind == MemoryKind::device ||
                                           (memory.mapping != nullptr && memory.mapping->physical->properties.allocFlags.gpuDirectRDMACapable != 0)
                                       ? 1
                                       : 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return answer(out, memory.pool != nullptr ? memory.pool->handle : 0);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return answer<unsigned long long>(out, block_id(memory));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return access_flags(c, memory, out);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return answer<unsigned>(out, is_decompression_capable(c, memory) ? 1 : 0);
    default: return range_attribute(memory, attribute, out);
  }
}

std::size_t attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return 8;
    default: return 4;
  }
}

/// The value that cuPointerGetAttributes gives for what it cannot answer: zero, and no device.
void write_default(CUpointer_attribute attribute, void* out) {
  std::memset(out, 0, attribute_bytes(attribute));
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) answer<int>(out, CU_DEVICE_INVALID);
}

}  // namespace

extern "C" {

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  return call(Symbol::cuPointerGetAttribute, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Allocation* memory = c.sim.find_known(address);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return attribute_of(c, *memory, address, attribute, out);
  });
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** out, CUdeviceptr address) {
  return call(Symbol::cuPointerGetAttributes, [&](Call& c) -> CUresult {
    if (count == 0 || attributes == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Allocation* memory = c.sim.find_known(address);
    for (unsigned i = 0; i < count; ++i) {
      if (out[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      if (attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT || attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS ||
          attributes[i] > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      write_default(attributes[i], out[i]);
      if (memory != nullptr) static_cast<void>(attribute_of(c, *memory, address, attributes[i], out[i]));
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  return call(Symbol::cuPointerSetAttribute, [&](Call& c) -> CUresult {
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    Allocation* memory = c.sim.find_known(address);
    if (memory == nullptr || memory->kind == MemoryKind::registered) return CUDA_ERROR_INVALID_VALUE;
    if (memory->kind == MemoryKind::mapped) return CUDA_ERROR_NOT_SUPPORTED;  // as an H100 answers, driver 580
    unsigned flag = 0;
    std::memcpy(&flag, value, sizeof flag);
    memory->sync_memops = flag != 0;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
