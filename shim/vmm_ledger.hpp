// VmmLedger: the physical memory that the program took by its own cuMemCreate, and when it is really gone.
//
// Small maps behind one lock that is never held across a driver call. Never calls the driver. Thread-safe.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "shim/array_parts.hpp"

namespace cupool::shim {

/// Memory is held by the references of its handle and by its mappings, at addresses and in sparse arrays, and is gone with the last of both:
/// cuMemRelease alone does not free what is mapped. Each memory gets a key of its own, because the driver may hand a handle's value out again
/// while the old memory is still mapped.
class VmmLedger {
 public:
  using Handle = CUmemGenericAllocationHandle;

  /// cuMemCreate has given `handle`; returns the key of its memory. Throws std::bad_alloc.
  std::uint64_t created(Handle handle);
  /// cuMemRetainAllocationHandle has given `handle` for what is mapped at `address`.
  void retained(Handle handle, CUdeviceptr address);
  void mapped(Handle handle, CUdeviceptr address, std::size_t bytes);
  struct Released {
    std::uint64_t key = 0;  ///< 0: the memory is not counted here
    bool is_gone = false;   ///< it was the last reference, and nothing is mapped
  };
  /// One reference fewer. Called before the driver's cuMemRelease, after which another thread may get the same value for other memory.
  Released released(Handle handle);
  void not_released(Handle handle, const Released& what);  ///< undoes released(): the driver has refused
  /// [address, +bytes) is unmapped; returns the keys of the memory that is gone with it.
  std::vector<std::uint64_t> unmapped(CUdeviceptr address, std::size_t bytes);

  using Arrays = std::multimap<const void*, ArrayParts>;  ///< by handle
  /// The driver has made a sparse array or one with deferred mapping, into which memory may be mapped. `is_whole`: only all of it at once.
  void array_made(const void* array, bool is_whole, CUcontext context);
  /// cuMemMapArrayAsync has mapped memory into an array, or unmapped some; returns the keys of the memory that is gone. `context`: the array's, in
  /// case its creation was not seen.
  std::vector<std::uint64_t> changed(const CUarrayMapInfo& change, CUcontext context);
  /// The array is about to be destroyed: takes out what is mapped into it, for not_destroyed() (the driver has refused) or for next_gone(). Needs no
  /// host memory.
  Arrays::node_type take_array(const void* array) noexcept;
  void not_destroyed(Arrays::node_type parts) noexcept;
  /// The key of one memory that is gone with the array; to be called until it returns 0.
  std::uint64_t next_gone(Arrays::node_type& parts) noexcept;
  /// The arrays of `context` are gone with it. Needs no host memory. What their memory held is told by next_gone().
  void context_ended(CUcontext context) noexcept;
  /// The key of one memory that is gone with the arrays of any ended context; to be called until it returns 0.
  std::uint64_t next_gone() noexcept;

 private:
  struct Physical {
    std::size_t references = 0;
    std::size_t mappings = 0;
  };
  struct Mapping {
    std::size_t bytes = 0;
    std::uint64_t key = 0;
  };

  std::uint64_t key_of(Handle handle) const;  ///< 0: the memory is not counted here (imported, of the host, made past us)
  bool loses_mapping(std::uint64_t key);      ///< one mapping fewer; true: the memory is gone with it

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Physical> physical_;  ///< by key
  std::unordered_map<Handle, std::uint64_t> by_handle_;   ///< -> key, while the handle has references
  std::map<CUdeviceptr, Mapping> by_address_;
  Arrays arrays_;
  Arrays ended_;  ///< arrays of contexts that have ended
  std::uint64_t next_key_ = 1;
};

}  // namespace cupool::shim
