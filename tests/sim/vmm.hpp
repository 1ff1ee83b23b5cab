// Virtual memory management: physical handles, reservations, mappings. A mapping covers a whole handle at offset 0, and nothing may touch it before
// cuMemSetAccess. Thread rule: guarded by the simulator's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>

#include "tests/sim/address_space.hpp"

namespace cusim {

struct PhysicalMemory {
  std::uint64_t handle = 0;
  int device = 0;
  std::uint64_t bytes = 0;
  CUmemAllocationProp properties{};
  int fd = -1;  ///< the bytes, of imported memory; else they are in the store's file
  std::uint64_t file_offset = 0;
  unsigned references = 1;  ///< cuMemCreate, retains and imports; mappings count apart
  unsigned mappings = 0;
  bool exported = false;
  bool imported = false;  ///< another process pays for it, and `fd` is ours to close
};

struct Mapping {
  PhysicalMemory* physical = nullptr;
  std::map<int, CUmemAccess_flags> access;  ///< by device
};

struct Reservation {
  std::uint64_t bytes = 0;
  std::uint64_t mapped_bytes = 0;
};

/// One memfd that holds the bytes of every handle of this process: tens of thousands of handles cost one descriptor.
/// An exported descriptor is the same file opened again, positioned at the handle's bytes, with a lock on them that ends with the last copy of it.
class PhysicalStore {
 public:
  ~PhysicalStore() { clear(); }
  /// The file, made when the first byte is moved: a process that may have no more files can still map.
  int fd();
  /// Places `bytes` (a multiple of 2 MiB) for `memory`.
  void place(PhysicalMemory& memory);
  void give_back(PhysicalMemory& memory);
  /// A new descriptor for `memory`, or -1.
  int export_descriptor(const PhysicalMemory& memory);
  /// A descriptor of it is open somewhere, here or where it was imported.
  bool is_held_elsewhere(const PhysicalMemory& memory) const;
  /// Fills `memory` from an exported descriptor; false when it is not one.
  static bool import_descriptor(int descriptor, PhysicalMemory& memory);
  void clear();

 private:
  int fd_ = -1;
  AddressSpace offsets_{2ULL << 20, 1ULL << 46};
};

}  // namespace cusim
