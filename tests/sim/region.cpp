// Memory that is not cuMemAlloc's: how it goes.
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "tests/sim/simulator.hpp"

namespace cusim {
namespace {

/// Pages of the host that a pool gave; of a device's it keeps the bytes.
void unmap_of_pool(Allocation& allocation) {
  if (allocation.host == nullptr) return;
  munmap(allocation.host, allocation.bytes);
  allocation.pool->reserved -= allocation.bytes;
}

}  // namespace

void Simulator::release_all_regions() {
  for (const auto& [base, memory] : regions) {
    if (memory->host != nullptr && memory->kind != MemoryKind::registered) munmap(memory->host, memory->bytes);
    if (memory->kind == MemoryKind::imported || memory->kind == MemoryKind::external) close(memory->fd);
  }
  regions.clear();
}

void Simulator::release_region(Allocation& allocation) {
  const CUdeviceptr base = allocation.base;
  switch (allocation.kind) {
    case MemoryKind::host:
    case MemoryKind::managed: munmap(allocation.host, allocation.bytes); break;
    case MemoryKind::imported:
    case MemoryKind::external:
      close(allocation.fd);
      address_space->give(base & ~(kGranuleBytes - 1), allocation.reserved_bytes);
      break;
    case MemoryKind::stream_ordered:
      if (!allocation.free_requested) return_to_pool(allocation, nullptr);
      unmap_of_pool(allocation);
      break;
    case MemoryKind::graph: end_graph_memory(*allocation.graph); break;
    case MemoryKind::device:
    case MemoryKind::variable:
    case MemoryKind::registered:
    case MemoryKind::mapped: break;
  }
  regions.erase(base);
}

void Simulator::drop_stream_ordered(CUdeviceptr base) {
  const auto found = regions.find(base);
  if (found == regions.end() || found->second->kind != MemoryKind::stream_ordered) return;
  disown(*found->second);
  unmap_of_pool(*found->second);
  regions.erase(found);
}

void Simulator::drop_if_unused(PhysicalMemory& memory) {
  if (memory.references != 0 || memory.mappings != 0) return;
  if (physical_store.is_held_elsewhere(memory)) {
    held_elsewhere.push_back(memory.handle);
    return;
  }
  if (!memory.imported) devices[static_cast<std::size_t>(memory.device)]->memory.uncharge(memory.bytes);
  physical_store.give_back(memory);
  physical.erase(memory.handle);
}

void Simulator::drop_what_is_let_go() {
  for (const std::uint64_t handle : std::exchange(held_elsewhere, {})) drop_if_unused(*physical.at(handle));
}

void Simulator::empty_array(Array& array) {
  devices[static_cast<std::size_t>(array.device)]->memory.uncharge(array.charged_bytes);
  array.charged_bytes = 0;
  for (const auto& [part, memory] : array.parts) {
    --memory->mappings;
    drop_if_unused(*memory);
  }
  array.parts.clear();
}

}  // namespace cusim
