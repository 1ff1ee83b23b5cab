// VirtualMemory: one function per driver call, each counted and timed. See virtual_memory.hpp.
#include "pool/vmm/virtual_memory.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "pool/core/bytes.hpp"

namespace cupool::vmm {
namespace {

/// Assigned field by field: in later headers the location has a union inside.
CUmemLocation place_of(int ordinal) {
  CUmemLocation place{};
  place.type = CU_MEM_LOCATION_TYPE_DEVICE;
  place.id = ordinal;
  return place;
}

bool is_about_properties(CUresult code) {
  return code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_NOT_PERMITTED;
}

}  // namespace

bool VirtualMemory::has_calls() const {
  return driver_.has_cuMemAddressReserve() && driver_.has_cuMemAddressFree() && driver_.has_cuMemCreate() && driver_.has_cuMemRelease() &&
         driver_.has_cuMemMap() && driver_.has_cuMemUnmap() && driver_.has_cuMemSetAccess() && driver_.has_cuMemGetAllocationGranularity() &&
         driver_.has_cuDeviceGetAttribute();
}

bool VirtualMemory::has_attribute(CUdevice_attribute attribute) const {
  int value = 0;
  return driver_.cuDeviceGetAttribute(&value, attribute, ordinal_) == CUDA_SUCCESS && value != 0;
}

VirtualMemory::VirtualMemory(const Driver& driver, int ordinal, Clock& clock) : driver_(driver), ordinal_(ordinal), clock_(clock) {
  if (!has_calls() || !has_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) return;
  properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties_.location = place_of(ordinal_);
  if (has_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) offered_ |= kDescriptors;
  if (has_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) offered_ |= kRdma;
  if (has_attribute(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK)) offered_ |= kDecompression;
  asked_.store(offered_);
  const CUmemAllocationProp asked = properties_with(offered_);
  std::size_t bytes = 0;
  if (driver_.cuMemGetAllocationGranularity(&bytes, &asked, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) return;
  if (!std::has_single_bit(bytes) || bytes < kBlockAlignment_bytes) return;
  granularity_bytes_ = bytes;
  const MutexLock lock(access_lock_);
  access_ = std::make_shared<const std::vector<CUmemAccessDesc>>(1, CUmemAccessDesc{place_of(ordinal_), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
}

CUmemAllocationProp VirtualMemory::properties_with(unsigned extras) const {
  CUmemAllocationProp properties = properties_;
  if ((extras & kDecompression) != 0) properties.allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
  if ((extras & kRdma) != 0) properties.allocFlags.gpuDirectRDMACapable = 1;
  if ((extras & kDescriptors) != 0) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

template <class Call> CUresult VirtualMemory::timed(Call&& call) {
  const std::uint64_t began_ns = clock_.now_ns();
  last_began_ns_.store(began_ns, std::memory_order_relaxed);
  const CUresult code = call();
  spent_ns_.fetch_add(clock_.now_ns() - began_ns, std::memory_order_relaxed);
  calls_.fetch_add(1, std::memory_order_relaxed);
  return code;
}

CUresult VirtualMemory::reserve(std::uint64_t bytes, CUdeviceptr* address) {
  return timed([&] { return driver_.cuMemAddressReserve(address, bytes, granularity_bytes_, CUdeviceptr{0}, 0ULL); });
}

CUresult VirtualMemory::free_addresses(CUdeviceptr address, std::uint64_t bytes) {
  return timed([&] { return driver_.cuMemAddressFree(address, bytes); });
}

CUresult VirtualMemory::create(std::uint64_t bytes, CUmemGenericAllocationHandle* handle) {
  for (;;) {
    const unsigned asked = asked_.load(std::memory_order_relaxed);
    const CUmemAllocationProp properties = properties_with(asked);
    const CUresult code = timed([&] { return driver_.cuMemCreate(handle, bytes, &properties, 0ULL); });
    if (!is_about_properties(code) || !ask_less_than(asked)) return code;
  }
}

/// From now on handles ask for fewer properties than `asked`. The driver does not say which one it refused; RDMA is given up last, because a program
/// is not told that it is missing. False: nothing was asked for.
bool VirtualMemory::ask_less_than(unsigned asked) {
  if (asked == 0) return false;
  unsigned fewer = asked - 1;
  while ((fewer & ~offered_) != 0) --fewer;
  asked_.compare_exchange_strong(asked, fewer, std::memory_order_relaxed);
  return true;
}

bool VirtualMemory::ask_less(CUresult code) {
  return !has_opened() && (is_about_properties(code) || code == CUDA_ERROR_UNKNOWN) && ask_less_than(asked_.load(std::memory_order_relaxed));
}

CUresult VirtualMemory::release(CUmemGenericAllocationHandle handle) {
  return timed([&] { return driver_.cuMemRelease(handle); });
}

CUresult VirtualMemory::map(CUdeviceptr address, std::uint64_t bytes, CUmemGenericAllocationHandle handle) {
  return timed([&] { return driver_.cuMemMap(address, bytes, std::size_t{0}, handle, 0ULL); });
}

CUresult VirtualMemory::unmap(CUdeviceptr address, std::uint64_t bytes) {
  return timed([&] { return driver_.cuMemUnmap(address, bytes); });
}

CUresult VirtualMemory::set_access(CUdeviceptr address, std::uint64_t bytes) {
  Access access;
  {
    const MutexLock lock(access_lock_);
    access = access_;
  }
  const CUresult code = timed([&] { return driver_.cuMemSetAccess(address, bytes, access->data(), access->size()); });
  if (code == CUDA_SUCCESS && !has_opened()) has_opened_.store(true, std::memory_order_relaxed);
  return code;
}

bool VirtualMemory::allow(int ordinal) {
  const MutexLock lock(access_lock_);
  if (std::any_of(access_->begin(), access_->end(), [ordinal](const CUmemAccessDesc& one) { return one.location.id == ordinal; })) return false;
  auto access = std::make_shared<std::vector<CUmemAccessDesc>>(*access_);
  access->push_back({place_of(ordinal), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  access_before_ = std::exchange(access_, std::move(access));
  return true;
}

void VirtualMemory::disallow() noexcept {
  const MutexLock lock(access_lock_);
  access_ = access_before_;
}

}  // namespace cupool::vmm
