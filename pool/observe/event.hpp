// One thing that happened to a device's memory: what the timeline ring, the trace and the views are made of.
#pragma once

#include <cstdint>

namespace cupool::observe {

enum class EventKind : std::uint8_t {
  allocate,        ///< a block became live; by the pool itself: it lives on, as the driver has refused to free it
  free_requested,  ///< the program freed it; it waits for the GPU
  free_completed,  ///< its bytes may be reused
  region_create,   ///< the pool took memory from the driver
  region_release,  ///< the pool gave memory back
  oom,             ///< an allocation failed; address is the driver's free bytes then
};

inline constexpr std::uint16_t kPoolItself = 0;  ///< as the thread of an event

/// 40 bytes. `ticks` is raw (see core/clock.hpp), turned into nanoseconds when the report is written.
struct Event {
  std::uint64_t ticks = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  ///< rounded to kBlockAlignment_bytes
  std::uint64_t requested_bytes = 0;
  std::uint32_t site = 0;  ///< call site, 0: not recorded
  /// A small number per thread, in order of first use; 0: the pool itself, 65535: the 65,535th thread and all later ones
  std::uint16_t thread = 0;
  EventKind kind = EventKind::allocate;
  std::uint8_t stream_class = 0;  ///< 1: of a call in stream order (cuMemAllocAsync, cuMemFreeAsync); 0: of any other, or of the pool itself
};

}  // namespace cupool::observe
