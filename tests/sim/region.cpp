// Memory that is not cuMemAlloc's: how it goes.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/sim/simulator.hpp"

namespace cusim {

void Simulator::release_region(Allocation& allocation) {
  const CUdeviceptr base = allocation.base;
  switch (allocation.kind) {
    case MemoryKind::host:
    case MemoryKind::managed:
      munmap(allocation.host, allocation.bytes);
      break;
    case MemoryKind::imported:
      close(allocation.fd);
      address_space->give(base & ~(kGranuleBytes - 1), allocation.reserved_bytes);
      break;
    case MemoryKind::stream_ordered:
      return_to_pool(allocation, nullptr);
      break;
    case MemoryKind::device:
    case MemoryKind::registered:
    case MemoryKind::mapped:
      break;
  }
  regions.erase(base);
}

}  // namespace cusim
