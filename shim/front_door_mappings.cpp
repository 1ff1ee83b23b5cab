// Calls of virtual memory management on an address (cuMemMap and its kin). Natively a pooled block is cuMemAlloc memory, which none of these calls
// knows. So our mapped pages must not be seen, changed or ended through them: about an address of ours the driver is asked as kNowhere. The program's
// own mappings pass, and are counted. CUDA Driver API 13.0 §6.14, §6.15.
#include "pool/core/bytes.hpp"
#include "shim/export_hints.hpp"
#include "shim/front_door.hpp"

namespace cupool::shim::front_door {
namespace {

/// `address`, or kNowhere where [address, +bytes) begins or ends in memory of ours.
CUdeviceptr unless_ours(CUdeviceptr address, std::size_t bytes = 1) {
  const PoolSet& pools = process().pools;
  if (pools.owns(address)) return kNowhere;
  const bool reaches_ours = bytes > 1 && address + (bytes - 1) > address && pools.owns(address + (bytes - 1));
  return reaches_ours ? kNowhere : address;
}

}  // namespace

CUresult map_physical(const Real<CUresult(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long)>& real,
                      CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const CUresult result = real(unless_ours(address, bytes), bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) process().vmm.mapped(handle, address, bytes);
  return result;
}

CUresult unmap_physical(const Real<CUresult(CUdeviceptr, std::size_t)>& real, CUdeviceptr address, std::size_t bytes) {
  const CUresult result = real(unless_ours(address, bytes), bytes);
  if (result != CUDA_SUCCESS) return result;
  for (const std::uint64_t key : process().vmm.unmapped(address, bytes)) process().pools.release_outside(OutsideKind::program_vmm, key);
  return result;
}

void forget_mapped_arrays() {
  Process& own = process();
  while (const std::uint64_t key = own.vmm.next_gone()) own.pools.release_outside(OutsideKind::program_vmm, key);
}

CUresult map_array(const Real<CUresult(CUarrayMapInfo*, unsigned, CUstream)>& real, CUarrayMapInfo* changes, unsigned count, CUstream stream) {
  const CUresult result = real(changes, count, stream);
  if (result != CUDA_SUCCESS || changes == nullptr) return result;
  Process& own = process();
  const CUcontext owner = current_owner(own);
  for (unsigned i = 0; i < count; ++i)
    for (const std::uint64_t key : own.vmm.changed(changes[i], owner)) own.pools.release_outside(OutsideKind::program_vmm, key);
  return result;
}

CUresult retain_physical(const Real<CUresult(CUmemGenericAllocationHandle*, void*)>& real, CUmemGenericAllocationHandle* out, void* address) {
  const CUdeviceptr asked = unless_ours(reinterpret_cast<CUdeviceptr>(address));
  const CUresult result = real(out, reinterpret_cast<void*>(asked));
  if (result == CUDA_SUCCESS && out != nullptr) process().vmm.retained(*out, asked);
  return result;
}

CUresult set_access(const Real<CUresult(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t)>& real, CUdeviceptr address, std::size_t bytes,
                    const CUmemAccessDesc* access, std::size_t count) {
  return real(unless_ours(address, bytes), bytes, access, count);
}

CUresult get_access(const Real<CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr)>& real, unsigned long long* flags,
                    const CUmemLocation* location, CUdeviceptr address) {
  return real(flags, location, unless_ours(address));
}

CUresult free_addresses(const Real<CUresult(CUdeviceptr, std::size_t)>& real, CUdeviceptr address, std::size_t bytes) {
  return real(unless_ours(address, bytes), bytes);
}

namespace {
/// Does the range end within the block, or on the host page on which the block ends? Programs round up to those, and natively even memory of a pool
/// has its last one whole (H100, driver 580).
bool is_within(const BlockView& block, CUdeviceptr address, std::size_t bytes) {
  return bytes <= (block.base + block.bytes + kHostPage_bytes - 1) / kHostPage_bytes * kHostPage_bytes - address;
}

/// Finds the block that begins behind `address` on the same host page, for programs that round down to those: natively nothing else lies on that
/// page. A block that does not have all of the range is passed over, since the program may mean the one beside it.
bool find_on_page(CUdeviceptr address, std::size_t bytes, BlockView* block) {
  if (address % kHostPage_bytes != 0) return false;
  for (CUdeviceptr begin = address + kBlockAlignment_bytes; begin < address + kHostPage_bytes; begin += kBlockAlignment_bytes)
    if (find_block(begin, block) == Ownership::live && block->base == begin && is_within(*block, address, bytes)) return true;
  return false;
}
}  // namespace

CUresult range_handle(const Real<CUresult(void*, CUdeviceptr, std::size_t, CUmemRangeHandleType, unsigned long long)>& real, void* out,
                      CUdeviceptr address, std::size_t bytes, CUmemRangeHandleType type, unsigned long long flags) {
  export_hints::note_range_use();  // it may be a library that imports the name
  BlockView block;
  const Ownership ownership = find_block(address, &block);
  if (ownership == Ownership::unknown) return real(out, address, bytes, type, flags);
  const bool is_found = (ownership == Ownership::live && is_within(block, address, bytes)) || find_on_page(address, bytes, &block);
  // At the same offset in a host page as the program's address: for a bad offset the driver may have an error of its own, which comes first.
  if (!is_found) return real(out, kNowhere - kNowhere % kHostPage_bytes + address % kHostPage_bytes, bytes, type, flags);
  process().pools.pin_pages(block.base);  // before the call: from its success on a device may hold these very pages
  return real(out, address, bytes, type, flags);
}

}  // namespace cupool::shim::front_door
