// What the driver tells about an address: the reach of SYNC_MEMOPS, buffer ids, and what virtual-memory mappings and
// cuMemAlloc memory answer differently. The pool must answer for a block as the driver answers for cuMemAlloc memory.
#include <unistd.h>

#include "tests/gpu/probes/physical.hpp"

namespace probe {
namespace {

template <class T> Json attribute(CUpointer_attribute name, CUdeviceptr address) {
  T value{};
  const CUresult code = CU(cuPointerGetAttribute)(&value, name, address);
  return code == CUDA_SUCCESS ? Json(value) : Json(code);
}

void ask_sync_memops() {
  // Three small blocks: natively neighbours in one granule.
  const Memory before(4096), marked(4096), after(4096);
  unsigned on = 1;
  answer("SYNC_MEMOPS set on a block", CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, marked.address()), CUDA_SUCCESS);
  answer("SYNC_MEMOPS of the block", attribute<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, marked.address()), 1);
  answer("SYNC_MEMOPS inside the block", attribute<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, marked.address() + 100), 1);
  answer("SYNC_MEMOPS of the block allocated before it", attribute<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, before.address()), 0);
  answer("SYNC_MEMOPS of the block allocated after it", attribute<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, after.address()), 0);
  answer("SYNC_MEMOPS set through an interior address", CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, after.address() + 512),
         CUDA_SUCCESS);
  answer("SYNC_MEMOPS of the whole block then", attribute<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, after.address()), 1);
}

void ask_identity(const Session& session) {
  const Memory first(4096), second(4096);
  unsigned long long id_1 = 0, id_2 = 0, inside = 0;
  auto* get = CU(cuPointerGetAttribute);
  get(&id_1, CU_POINTER_ATTRIBUTE_BUFFER_ID, first.address());
  get(&id_2, CU_POINTER_ATTRIBUTE_BUFFER_ID, second.address());
  get(&inside, CU_POINTER_ATTRIBUTE_BUFFER_ID, first.address() + 100);
  answer("BUFFER_ID differs between two small blocks", id_1 != id_2, true);
  answer("BUFFER_ID is the same inside a block", id_1 == inside, true);
  unsigned long long block_1 = 0, block_2 = 0;
  const CUresult code = get(&block_1, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, first.address());
  get(&block_2, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, second.address());
  if (code != CUDA_SUCCESS) answer("MEMORY_BLOCK_ID of cuMemAlloc memory", code);
  else answer("MEMORY_BLOCK_ID differs between two small blocks", block_1 != block_2, false);
  CUcontext owner = nullptr;
  get(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, first.address());
  answer("CONTEXT of cuMemAlloc memory is the current one", owner == session.context, true);
  answer("IS_LEGACY_CUDA_IPC_CAPABLE of cuMemAlloc memory", attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, first.address()), 1);
  answer("ALLOWED_HANDLE_TYPES of cuMemAlloc memory", attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, first.address()), 0);
  answer("IS_GPU_DIRECT_RDMA_CAPABLE of cuMemAlloc memory", attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, first.address()));
  answer("IS_HW_DECOMPRESS_CAPABLE of cuMemAlloc memory", attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, first.address()));
  CUmemGenericAllocationHandle handle = 0;
  answer("cuMemRetainAllocationHandle of cuMemAlloc memory", CU(cuMemRetainAllocationHandle)(&handle, reinterpret_cast<void*>(first.address())),
         CUDA_ERROR_INVALID_VALUE);
}

void ask_mapping(const Session& session) {
  const Mapping whole(session.device, 4 << 20);
  const Mapping pieces(session.device, 4 << 20, 2);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  auto* range = CU(cuMemGetAddressRange_v2);
  const CUresult code = range(&base, &bytes, whole.address() + 512);
  answer("cuMemGetAddressRange of a mapping of one handle", code);
  if (code == CUDA_SUCCESS) answer("cuMemGetAddressRange of a mapping of one handle (4 MiB): its size", bytes);
  const CUresult of_pieces = range(&base, &bytes, pieces.address() + (3 << 20));
  answer("cuMemGetAddressRange inside the second of two handles", of_pieces);
  if (of_pieces == CUDA_SUCCESS) {
    answer("cuMemGetAddressRange inside the second of two handles: offset of the base", static_cast<std::int64_t>(base - pieces.address()));
    answer("cuMemGetAddressRange inside the second of two handles: size", bytes);
  }
  CUcontext owner = session.context;
  const CUresult of_context = CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, whole.address());
  if (of_context != CUDA_SUCCESS) answer("CONTEXT of mapped memory", of_context);
  else answer("CONTEXT of mapped memory", owner == nullptr ? "NULL" : owner == session.context ? "the current one" : "another", "NULL");
  answer("IS_LEGACY_CUDA_IPC_CAPABLE of mapped memory", attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, whole.address()), 0);
  CUipcMemHandle handle{};
  answer("cuIpcGetMemHandle of mapped memory", CU(cuIpcGetMemHandle)(&handle, whole.address()));
  unsigned on = 1;
  answer("SYNC_MEMOPS set on mapped memory", CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, whole.address()));
  answer("cuMemFree of mapped memory", CU(cuMemFree_v2)(whole.address()), CUDA_ERROR_INVALID_VALUE);
}

void ask_dma_buf(const Session& session) {
  const Mapping pieces(session.device, 4 << 20, 2);
  const Memory plain(4 << 20);
  auto* get = CU(cuMemGetHandleForAddressRange);
  for (const CUdeviceptr address : {plain.address(), pieces.address()}) {
    int descriptor = -1;
    const CUresult code = get(&descriptor, address, 4 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    answer(address == plain.address() ? "dma-buf of cuMemAlloc memory" : "dma-buf over two mapped handles", code);
    if (code == CUDA_SUCCESS) close(descriptor);
  }
  CUdeviceptr pooled = 0;
  int descriptor = -1;
  prepare(CU(cuMemAllocAsync)(&pooled, 4 << 20, nullptr), "cuMemAllocAsync");
  const CUresult of_pool = get(&descriptor, pooled, 4 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  answer("dma-buf of memory of a pool", of_pool, CUDA_SUCCESS);
  if (of_pool == CUDA_SUCCESS) close(descriptor);
  static_cast<void>(CU(cuMemFreeAsync)(pooled, nullptr));
  const CUresult by_pcie =
      get(&descriptor, plain.address(), 4 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
  answer("dma-buf by way of PCIe", by_pcie, CUDA_ERROR_NOT_SUPPORTED);
  if (by_pcie == CUDA_SUCCESS) close(descriptor);
}

/// What the device of the current context may do with memory, and what is said without one.
void ask_access_flags(const Session& session) {
  const Mapping mapped(session.device, 2 << 20);
  const Memory plain(4096);
  answer("ACCESS_FLAGS of mapped memory", attribute<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, mapped.address()), 3);
  answer("ACCESS_FLAGS of cuMemAlloc memory", attribute<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, plain.address()), 3);
  prepare(CU(cuCtxSetCurrent)(nullptr), "cuCtxSetCurrent");
  answer("ACCESS_FLAGS without a context", attribute<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, plain.address()), 3);
  answer(
      "CONTEXT without a context",
      attribute<std::uint64_t>(CU_POINTER_ATTRIBUTE_CONTEXT, plain.address()).text() == Json(reinterpret_cast<std::uint64_t>(session.context)).text(),
      true);
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
}

}  // namespace

void ask_pointers(Session& session) {
  group("SYNC_MEMOPS", ask_sync_memops);
  group("identity", [&] { ask_identity(session); });
  group("mapped memory", [&] { ask_mapping(session); });
  group("access flags", [&] { ask_access_flags(session); });
  group("dma-buf", [&] { ask_dma_buf(session); });
}

}  // namespace probe
