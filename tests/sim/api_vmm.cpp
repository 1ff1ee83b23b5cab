// Virtual memory management; none of it disturbs a capture (an H100, driver 580). Source: CUDA Driver API 13.0, "Virtual Memory Management".
#include "tests/sim/vmm_calls.hpp"

using namespace cusim;

namespace {

bool is_granular(Call& c, std::uint64_t value) { return value % c.sim.settings.vmm_minimum_bytes == 0; }

CUresult check_supported(Call& c) { return c.sim.settings.supports_vmm ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED; }

CUresult check_properties(Call& c, const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  const CUmemLocation location = without_domain(c.sim, properties->location);
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return c.refuse_unmodelled("memory of the host");
  Device* device = nullptr;
  return c.device(location.id, &device);
}

/// [?] the codes; and that they come from cuMemCreate alone.
CUresult check_offers(Call& c, const CUmemAllocationProp& properties) {
  constexpr unsigned kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if ((properties.requestedHandleTypes & ~kDescriptor) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const bool wants_descriptor = (properties.requestedHandleTypes & kDescriptor) != 0;
  if (wants_descriptor && c.sim.settings.vmm_descriptors != Offer::given) return CUDA_ERROR_NOT_SUPPORTED;
  const bool wants_decompression = (properties.allocFlags.usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS) != 0;
  if (wants_decompression && c.sim.settings.decompression != Offer::given) return CUDA_ERROR_NOT_SUPPORTED;
  const bool wants_rdma = properties.allocFlags.gpuDirectRDMACapable != 0;
  const bool may_want_rdma = c.sim.settings.vmm_rdma == Offer::given || c.sim.settings.vmm_rdma == Offer::unopened;
  return wants_rdma && !may_want_rdma ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/// With CUSIM_NOTE_SYNC: all work of the process, of every context. Gives up the lock.
void wait_as_noted(Call& c) {
  if (!c.sim.settings.vmm_waits) return;
  for (std::size_t i = 0; i < c.sim.contexts.size(); ++i) {
    Context& context = *c.sim.contexts[i];
    if (context.alive) c.sim.wait_for_context(context, c.lock);
  }
}

/// [?] Also in a context that an illegal access has broken, and so do the other calls of virtual memory management.
CUresult create(Call& c, CUmemGenericAllocationHandle* out, std::size_t bytes, const CUmemAllocationProp* properties, unsigned long long flags) {
  CUSIM_TRY(check_supported(c));
  if (out == nullptr || bytes == 0 || !is_granular(c, bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(check_properties(c, properties));
  CUSIM_TRY(check_offers(c, *properties));
  const int ordinal = without_domain(c.sim, properties->location).id;
  Device& device = *c.sim.devices[static_cast<std::size_t>(ordinal)];
  if (!device.memory.charge(bytes) && !(c.sim.give_back_unused(ordinal) && device.memory.charge(bytes))) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto memory = std::make_unique<PhysicalMemory>();
  memory->handle = c.sim.new_handle();
  memory->device = ordinal;
  memory->bytes = bytes;
  memory->properties = *properties;
  c.sim.physical_store.place(*memory);
  *out = memory->handle;
  c.sim.physical.emplace(memory->handle, std::move(memory));
  return CUDA_SUCCESS;
}

/// The reservation that holds all of [address, +bytes), or null.
Reservation* reservation_of(Call& c, CUdeviceptr address, std::size_t bytes) {
  auto after = c.sim.reservations.upper_bound(address);
  if (after == c.sim.reservations.begin()) return nullptr;
  --after;
  const std::uint64_t offset = address - after->first;
  return offset < after->second.bytes && bytes <= after->second.bytes - offset ? &after->second : nullptr;
}

CUresult map(Call& c, CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  CUSIM_TRY(check_supported(c));
  if (flags != 0 || bytes == 0 || !is_granular(c, offset) || !is_granular(c, bytes) || !is_granular(c, address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  PhysicalMemory* physical = find_physical(c, handle);
  if (physical == nullptr || offset > physical->bytes || bytes > physical->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
  if (bytes != physical->bytes) return CUDA_ERROR_NOT_SUPPORTED;  // a handle is indivisible: an H100, driver 580
  Reservation* reservation = reservation_of(c, address, bytes);
  if (reservation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto after = c.sim.regions.lower_bound(address + bytes);
  if (after != c.sim.regions.begin()) {
    const Allocation& before = *std::prev(after)->second;
    if (before.base + before.bytes > address) {
      c.sim.violate("cuMemMap over an address range that is mapped");
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  auto mapping = std::make_unique<Mapping>();
  mapping->physical = physical;
  auto memory = std::make_unique<Allocation>();
  memory->base = address;
  memory->bytes = bytes;
  memory->kind = MemoryKind::mapped;
  memory->live = true;
  memory->device = physical->device;
  memory->fd = physical->fd;
  memory->file_offset = physical->file_offset;
  memory->buffer_id = next_buffer_id();
  memory->mapping = mapping.get();
  ++physical->mappings;
  reservation->mapped_bytes += bytes;
  c.sim.mappings[address] = std::move(mapping);
  c.sim.regions.emplace(address, std::move(memory));
  return CUDA_SUCCESS;
}

/// True when [address, +bytes) consists of whole mappings, with no hole.
bool covers_whole_mappings(Call& c, CUdeviceptr address, std::size_t bytes) {
  const CUdeviceptr end = address + bytes;
  while (address < end) {
    const auto found = c.sim.regions.find(address);
    if (found == c.sim.regions.end() || found->second->kind != MemoryKind::mapped) return false;
    address += found->second->bytes;
  }
  return address == end;
}

CUresult unmap(Call& c, CUdeviceptr address, std::size_t bytes) {
  CUSIM_TRY(check_supported(c));
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Reservation* reservation = reservation_of(c, address, bytes);
  if (reservation == nullptr || !covers_whole_mappings(c, address, bytes)) {
    c.sim.violate("cuMemUnmap of a range that is not made of whole mappings");
    return CUDA_ERROR_INVALID_VALUE;
  }
  // It may synchronise, so programs must rely on neither: unless it is told to wait (CUSIM_NOTE_SYNC), work that still touches the
  // range finds it gone when it completes.
  wait_as_noted(c);
  reservation = reservation_of(c, address, bytes);  // the lock may have been given up
  if (reservation == nullptr || !covers_whole_mappings(c, address, bytes)) {
    c.sim.violate("cuMemUnmap raced with another of the same range");
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUdeviceptr end = address + bytes;
  while (address < end) {
    const auto found = c.sim.regions.find(address);
    PhysicalMemory& physical = *found->second->mapping->physical;
    reservation->mapped_bytes -= found->second->bytes;
    address += found->second->bytes;
    c.sim.mappings.erase(found->first);
    c.sim.regions.erase(found);
    --physical.mappings;
    c.sim.drop_if_unused(physical);
  }
  return CUDA_SUCCESS;
}

CUresult check_access(Call& c, CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc& wanted) {
  Device* device = nullptr;
  if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(c.device(wanted.location.id, &device));
  if (wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (c.sim.settings.links_devices || wanted.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_SUCCESS;
  for (CUdeviceptr at = address; at < address + bytes; at += c.sim.regions.find(at)->second->bytes) {
    if (c.sim.regions.find(at)->second->device != wanted.location.id) return CUDA_ERROR_INVALID_DEVICE;  // [?] the code
  }
  return CUDA_SUCCESS;
}

CUresult set_access(Call& c, CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* descriptors, std::size_t count) {
  CUSIM_TRY(check_supported(c));
  if (descriptors == nullptr || count == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!covers_whole_mappings(c, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) CUSIM_TRY(check_access(c, address, bytes, descriptors[i]));
  wait_as_noted(c);
  if (!covers_whole_mappings(c, address, bytes)) {
    c.sim.violate("cuMemSetAccess raced with cuMemUnmap of the same range");
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (CUdeviceptr at = address; at < address + bytes; at += c.sim.regions.find(at)->second->bytes) {
    const bool has_rdma = c.sim.regions.find(at)->second->mapping->physical->properties.allocFlags.gpuDirectRDMACapable != 0;
    if (has_rdma && c.sim.settings.vmm_rdma == Offer::unopened) return CUDA_ERROR_UNKNOWN;
  }
  for (CUdeviceptr at = address; at < address + bytes;) {
    const Allocation& memory = *c.sim.regions.find(at)->second;
    for (std::size_t i = 0; i < count; ++i) memory.mapping->access[descriptors[i].location.id] = descriptors[i].flags;
    at += memory.bytes;
  }
  return CUDA_SUCCESS;
}

bool is_beyond_bound(const Call& c, std::uint64_t bytes) {
  const std::uint64_t most_bytes = c.sim.settings.address_bytes;
  std::uint64_t held_bytes = 0;
  for (const auto& [base, reservation] : c.sim.reservations) held_bytes += reservation.bytes;
  return most_bytes != 0 && (held_bytes > most_bytes || bytes > most_bytes - held_bytes);
}

}  // namespace

extern "C" {

CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
  return call(Symbol::cuMemAddressReserve, [&](Call& c) -> CUresult {
    CUSIM_TRY(check_supported(c));
    if (out == nullptr || bytes == 0 || !is_granular(c, bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (is_beyond_bound(c, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUdeviceptr base = c.sim.address_space->take(bytes, std::max<std::uint64_t>(alignment, c.sim.settings.vmm_minimum_bytes), hint);
    if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    c.sim.reservations.emplace(base, Reservation{bytes, 0});
    *out = base;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return call(Symbol::cuMemAddressFree, [&](Call& c) -> CUresult {
    CUSIM_TRY(check_supported(c));
    const auto found = c.sim.reservations.find(address);
    if (found == c.sim.reservations.end() || found->second.bytes != bytes) {
      c.sim.violate("cuMemAddressFree of a range that was not reserved as such");
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (found->second.mapped_bytes != 0) {
      c.sim.violate("cuMemAddressFree of a range that is still mapped");
      return CUDA_ERROR_INVALID_VALUE;
    }
    c.sim.reservations.erase(found);
    c.sim.address_space->give(address, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* properties, unsigned long long flags) {
  return call(Symbol::cuMemCreate, [&](Call& c) { return create(c, out, bytes, properties, flags); });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return call(Symbol::cuMemRelease, [&](Call& c) -> CUresult {
    PhysicalMemory* memory = find_physical(c, handle);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    --memory->references;
    c.sim.drop_if_unused(*memory);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return call(Symbol::cuMemMap, [&](Call& c) { return map(c, address, bytes, offset, handle, flags); });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return call(Symbol::cuMemUnmap, [&](Call& c) { return unmap(c, address, bytes); });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptors, size_t count) {
  return call(Symbol::cuMemSetAccess, [&](Call& c) { return set_access(c, address, bytes, descriptors, count); });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  return call(Symbol::cuMemGetAccess, [&](Call& c) -> CUresult {
    if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(location->id, &device));
    const Allocation* memory = c.sim.find_memory(address);
    if (memory == nullptr || memory->mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto access = memory->mapping->access.find(location->id);
    *flags = access == memory->mapping->access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : access->second;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags option) {
  return call(Symbol::cuMemGetAllocationGranularity, [&](Call& c) -> CUresult {
    CUSIM_TRY(check_supported(c));
    if (out == nullptr || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    CUSIM_TRY(check_properties(c, properties));
    const Settings& settings = c.sim.settings;
    *out = option == CU_MEM_ALLOC_GRANULARITY_MINIMUM ? settings.vmm_minimum_bytes : settings.vmm_recommended_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out, CUmemGenericAllocationHandle handle) {
  return call(Symbol::cuMemGetAllocationPropertiesFromHandle, [&](Call& c) -> CUresult {
    const PhysicalMemory* memory = find_physical(c, handle);
    if (out == nullptr || memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = memory->properties;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  return call(Symbol::cuMemRetainAllocationHandle, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Allocation* memory = c.sim.find_memory(as_number(address));
    if (memory == nullptr || memory->mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ++memory->mapping->physical->references;
    *out = memory->mapping->physical->handle;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
