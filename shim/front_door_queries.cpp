// Queries about memory, which a pooled block answers as cuMemAlloc memory does. The driver is asked first, with the program's own arguments, so that
// errors (context, NULL, sticky ones) come from it. Then what its answer would show of our region or mapping is replaced by what is true of the
// block. CUDA Driver API 13.0 §6.14, §6.17 (unified addressing).
#include <algorithm>
#include <cstring>

#include "pool/core/bytes.hpp"
#include "shim/front_door.hpp"

namespace cupool::shim::front_door {
namespace {

template <class T> void put(void* out, T value) { *static_cast<T*>(out) = value; }

template <class T> void put_unless_zero(void* out, T value) {
  if (*static_cast<const T*>(out) != 0) put(out, value);
}

/// The driver maps cuMemAlloc memory in pieces of this size, which small blocks share (H100, driver 580).
constexpr std::uint64_t kMapped_bytes = 2 * kMiB;

std::uint64_t mapping_begin(const BlockView& block) { return align_down(block.base, kMapped_bytes); }
std::uint64_t mapping_bytes(const BlockView& block) { return align_up(block.base + block.bytes, kMapped_bytes) - mapping_begin(block); }

/// Is the block a cuMemAlloc allocation of the driver's? (Under `async` it is a piece of the driver's memory pool.)
bool is_own_allocation(const BlockView& block) { return block.is_native && process().options->policy != config::Policy::async; }

/// Replaces the driver's answer, which is about the region, by the block's.
void answer_as_block(const BlockView& block, CUpointer_attribute attribute, void* value) {
  if (value == nullptr) return;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put<CUdeviceptr>(value, block.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put<std::size_t>(value, block.bytes);
    // A driver that does not know these two leaves 0 in the plural query, and 0 stays. For an allocation of its own the driver's answer stands.
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      if (!is_own_allocation(block)) put_unless_zero<CUdeviceptr>(value, mapping_begin(block));
      return;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      if (!is_own_allocation(block)) put_unless_zero<std::size_t>(value, mapping_bytes(block));
      return;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return put<unsigned long long>(value, block.buffer_id);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return put<unsigned>(value, block.sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      // Under `async` a plain block lies in the driver's pool, but the program did not ask for it there.
      return put<CUmemoryPool>(value, block.mempool != 0 ? process().mempools.handle({block.device, block.mempool}) : nullptr);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      if (block.mempool != 0 || block.is_paged) put<bool>(value, block.mempool == 0);
      return;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:  // memory of a pool is not (H100, driver 580)
      if (block.mempool != 0) put<bool>(value, false);
      return;
    case CU_POINTER_ATTRIBUTE_CONTEXT:  // the driver names none for mapped memory; memory of any pool has none (H100, driver 580)
      return put<CUcontext>(value, block.mempool != 0 ? nullptr : block.context);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:  // without a current context the driver has none for mapped memory, but for other memory
      if (block.is_paged && current_context(process()) == nullptr) put<unsigned>(value, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
      return;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:  // our mapping can be exported, cuMemAlloc memory cannot
      if (block.is_paged) put<unsigned long long>(value, 0);
      return;
    default: return;  // device, memory type: as the region
  }
}

/// How many bytes answer_as_block writes for the attribute; 0: none.
std::size_t answer_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return sizeof(std::uint64_t);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return sizeof(unsigned);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return sizeof(bool);
    default: return 0;
  }
}

using AskPlural = Real<CUresult(unsigned, CUpointer_attribute*, void**, CUdeviceptr)>;

/// A plural query that is refused may have answered the attributes before the one that it refuses: those answers are replaced, too. An output that
/// does not hold the region's answer was not written, and is left as it is.
void repair_refused(const AskPlural& real, unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr address,
                    const BlockView& block) {
  if (attributes == nullptr || values == nullptr) return;
  for (unsigned i = 0; i < count; ++i) {
    std::uint64_t of_region = 0;
    void* output = &of_region;
    if (values[i] == nullptr || real(1, &attributes[i], &output, address) != CUDA_SUCCESS) return;
    if (std::memcmp(values[i], &of_region, answer_bytes(attributes[i])) == 0) answer_as_block(block, attributes[i], values[i]);
  }
}

/// Attributes that every driver tells of cuMemAlloc memory, but need not tell of mapped memory.
bool is_always_known(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return true;
    default: return false;
  }
}

/// The block's buffer id was told: whoever remembers memory by it may hold its very pages (registration caches, NCCL's graph buffers), so they stay.
void keep_pages(const BlockView& block, CUpointer_attribute attribute) {
  if (block.is_paged && attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID) process().pools.pin_pages(block.base);
}

/// The address to ask the driver about: natively it would not know one that lies between live blocks.
CUdeviceptr visible(Ownership ownership, CUdeviceptr address) { return ownership == Ownership::vacant ? kNowhere : address; }

}  // namespace

CUresult memory_info(const Real<CUresult(std::size_t*, std::size_t*)>& real, std::size_t* free_bytes, std::size_t* total_bytes) {
  const CUresult result = real(free_bytes, total_bytes);
  if (result != CUDA_SUCCESS || (free_bytes == nullptr && total_bytes == nullptr)) return result;
  Process& own = process();
  std::size_t adjusted_free = free_bytes != nullptr ? *free_bytes : 0;
  std::size_t adjusted_total = total_bytes != nullptr ? *total_bytes : 0;
  const CUcontext context = current_context(own);
  if (context == nullptr) return result;
  const bool is_half = free_bytes == nullptr || total_bytes == nullptr;  // the driver took a NULL, but both figures are needed here
  if (is_half && own.api.cuMemGetInfo_v2(&adjusted_free, &adjusted_total) != CUDA_SUCCESS) return result;
  own.pools.adjust_mem_info(own.contexts.owner(context), &adjusted_free, &adjusted_total);
  if (free_bytes != nullptr) *free_bytes = adjusted_free;
  if (total_bytes != nullptr) *total_bytes = adjusted_total;
  return result;
}

CUresult device_total(const Real<CUresult(std::size_t*, CUdevice)>& real, std::size_t* bytes, CUdevice device) {
  const CUresult result = real(bytes, device);
  if (result != CUDA_SUCCESS || bytes == nullptr) return result;
  const config::Amount* limit = process().options->limit.for_device(device);
  if (limit != nullptr) *bytes = std::min<std::size_t>(*bytes, std::max<std::size_t>(limit->resolve(*bytes), 1));
  return result;
}

CUresult address_range(const Real<CUresult(CUdeviceptr*, std::size_t*, CUdeviceptr)>& real, CUdeviceptr* base, std::size_t* bytes,
                       CUdeviceptr address) {
  BlockView block;
  const Ownership ownership = find_block(address, &block);
  CUresult result = real(base, bytes, visible(ownership, address));
  if (ownership != Ownership::live) return result;
  if (block.is_paged && result == CUDA_ERROR_NOT_FOUND) result = CUDA_SUCCESS;  // some drivers know no range of mapped memory (nccl #2332)
  if (result != CUDA_SUCCESS) return result;
  if (base != nullptr) *base = block.base;
  if (bytes != nullptr) *bytes = block.bytes;
  return result;
}

CUresult pointer_attribute(const Real<CUresult(void*, CUpointer_attribute, CUdeviceptr)>& real, void* value, CUpointer_attribute attribute,
                           CUdeviceptr address) {
  BlockView block;
  const Ownership ownership = find_block(address, &block);
  CUresult result = real(value, attribute, visible(ownership, address));
  if (ownership != Ownership::live) return result;
  // NOT_SUPPORTED is what the driver says about SYNC_MEMOPS of mapped memory (H100, driver 580).
  const bool is_refused = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED;
  if (block.is_paged && is_refused && value != nullptr && is_always_known(attribute)) result = CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) return result;
  keep_pages(block, attribute);
  answer_as_block(block, attribute, value);
  return result;
}

CUresult pointer_attributes(const AskPlural& real, unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr address) {
  BlockView block;
  const Ownership ownership = find_block(address, &block);
  const CUresult result = real(count, attributes, values, visible(ownership, address));
  if (ownership != Ownership::live) return result;
  if (result != CUDA_SUCCESS) {
    repair_refused(real, count, attributes, values, address, block);
    return result;
  }
  for (unsigned i = 0; i < count; ++i) {
    keep_pages(block, attributes[i]);
    answer_as_block(block, attributes[i], values[i]);
  }
  return result;
}

CUresult set_pointer_attribute(const Real<CUresult(const void*, CUpointer_attribute, CUdeviceptr)>& real, const void* value,
                               CUpointer_attribute attribute, CUdeviceptr address) {
  PoolSet& pools = process().pools;
  BlockView block;
  const Ownership ownership = pools.find(address, &block);
  if (ownership == Ownership::unknown) return set_opened_attribute(real, value, attribute, address);
  if (ownership != Ownership::live || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || value == nullptr)
    return real(value, attribute, visible(ownership, address));
  const bool on = *static_cast<const unsigned*>(value) != 0;
  const Status status = pools.set_sync_memops(address, on);
  if (status.ok() && block.is_paged) g_copies_are_watched.store(true, std::memory_order_relaxed);
  return status.code();
}

}  // namespace cupool::shim::front_door
