// Virtual memory management: physical handles, reservations, mappings. Strict: a mapping covers a whole handle at
// offset 0, and nothing may touch it before cuMemSetAccess. Thread rule: guarded by the simulator's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>

namespace cusim {

struct PhysicalMemory {
  std::uint64_t handle = 0;
  int device = 0;
  std::uint64_t bytes = 0;
  CUmemAllocationProp properties{};
  int fd = -1;                 ///< the bytes
  unsigned references = 1;     ///< cuMemCreate, retains and imports; mappings count apart
  unsigned mappings = 0;
  bool charged = true;         ///< false: imported, another process pays
};

struct Mapping {
  PhysicalMemory* physical = nullptr;
  std::map<int, CUmemAccess_flags> access;  ///< by device
};

struct Reservation {
  std::uint64_t bytes = 0;
};

}  // namespace cusim
