// The live page: one file in shared memory that holds a process's counters, readable after SIGKILL.
//
// The counters are not copied here, they live here: pool/device writes them in place. The layout is a
// published format (docs in ARCHITECTURE.md): a header, two name tables, then one LiveDevice per device,
// so that a reader needs no list of its own. All integers little endian, all offsets from the page's start.
// shim/live_page creates and maps the file; without one (no shared memory) the same struct sits in the heap.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "pool/driver/driver_api.hpp"
#include "pool/observe/counters.hpp"

namespace cupool::observe {

inline constexpr std::size_t kMaxDevices = 64;
inline constexpr std::uint64_t kLivePageMagic = 0x3147504c55504355;  // "UCPULPG1", little endian
inline constexpr std::uint32_t kLivePageVersion = 1;

/// Fragmentation figures that the pool keeps current, so that a report can be completed from the page alone.
/// largest_free and free are of the pool; the at_peak pair was taken at the moment of peak live.
struct LiveFragmentation {
  std::atomic<std::uint64_t> free_bytes{0};
  std::atomic<std::uint64_t> largest_free_bytes{0};
  std::atomic<std::uint64_t> inactive_split_bytes{0};
  std::atomic<std::uint64_t> at_peak_free_bytes{0};
  std::atomic<std::uint64_t> at_peak_largest_free_bytes{0};
  std::atomic<std::uint64_t> at_peak_live_bytes{0};
  std::atomic<std::uint64_t> at_peak_requested_bytes{0};
  std::atomic<std::uint64_t> at_peak_reserved_bytes{0};
};

/// One device. `in_use` is stored last (release), after the identity fields.
struct LiveDevice {
  std::atomic<std::uint32_t> in_use{0};
  std::int32_t ordinal = -1;
  char uuid[40] = {};   ///< "GPU-xxxxxxxx-xxxx-…", NUL terminated
  char name[128] = {};  ///< NUL terminated
  char policy[16] = {};
  char backing[16] = {};
  std::uint64_t total_bytes = 0;
  std::uint64_t limit_bytes = 0;                      ///< 0: no limit
  std::atomic<std::uint64_t> driver_free_bytes{0};    ///< as the driver last told us
  std::atomic<std::uint64_t> driver_free_unix_ns{0};  ///< when that was
  Counters counters;
  DriverCallCounts driver_calls{};
  LiveFragmentation fragmentation;
};

/// Fixed head of the file; name tables, text and devices follow at the offsets given.
struct LiveHeader {
  std::uint64_t magic = 0;  ///< stored last (release)
  std::uint32_t version = 0;
  std::uint32_t header_bytes = 0;
  std::int32_t pid = 0;
  std::uint32_t state = 0;  ///< LiveState
  std::uint64_t process_start_ticks = 0;  ///< field 22 of /proc/self/stat: with pid, the process's identity
  std::uint64_t start_unix_ns = 0;
  std::uint64_t start_monotonic_ns = 0;
  std::uint32_t counter_names_offset = 0;      ///< kCounterRows, "name kind unit\n" lines
  std::uint32_t counter_names_bytes = 0;
  std::uint32_t driver_call_names_offset = 0;  ///< kDriverCallNames, one per line
  std::uint32_t driver_call_names_bytes = 0;
  std::uint32_t process_json_offset = 0;       ///< UTF-8 JSON: {"process": …, "options": …, "report_path": …}
  std::uint32_t process_json_bytes = 0;
  std::uint32_t devices_offset = 0;
  std::uint32_t device_stride_bytes = 0;
  std::uint32_t device_count = 0;              ///< slots, kMaxDevices
  std::uint32_t counters_offset_in_device = 0;
  std::uint32_t driver_calls_offset_in_device = 0;
  std::uint32_t fragmentation_offset_in_device = 0;
  std::uint32_t request = 0;                   ///< a reader asks for something (trim, report); 0: nothing
  std::uint32_t reserved = 0;
};

enum class LiveState : std::uint32_t { cold = 0, live = 1, exiting = 2, reported = 3 };

}  // namespace cupool::observe
