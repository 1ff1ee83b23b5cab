// The live page: one file in shared memory that holds a process's counters, readable after SIGKILL.
//
// The counters are not copied here, they live here: pool/device writes them in place. shim/live_page creates and
// maps the file; without one (no shared memory) the same structs sit in the heap. Everything that a report needs
// can be completed from the page, but for what grows with the number of blocks: the histogram,
// holes, address map, timeline and leaks by site.
//
// FORMAT, version 2. Little endian, 64-bit. Offsets count from the page's start unless said otherwise.
//
//   1. Check `magic` at 0 (the bytes "CUPULPG1"; stored last, so a page without it is being made) and `version` == 2.
//   2. Read LiveHeader at 0; its offsets stand below as kLiveHeader… constants, each checked by a static_assert:
//        0 u64 magic                     8 u32 version                12 u32 header_bytes
//       16 i32 pid                      20 u32 state (LiveState)      24 u64 process_start_ticks (field 22 of /proc/PID/stat)
//       32 u64 start_unix_ns            40 u64 start_monotonic_ns
//       48 u32 counter_names_offset     52 u32 counter_names_bytes         text: "name gauge|total unit\n" per counter
//       56 u32 driver_call_names_offset 60 u32 driver_call_names_bytes     text: "symbol\n" per count
//       64 u32 process_json_offset      68 u32 process_json_bytes          UTF-8 JSON, see process_json() in report.hpp
//       72 u32 devices_offset           76 u32 device_stride_bytes    80 u32 device_count (slots)
//       84 u32 counters_offset_in_device        88 u32 driver_calls_offset_in_device
//       92 u32 fragmentation_offset_in_device   96 u32 request (LiveRequest)   100 u32 outside_offset_in_device
//      104 u32 fragmentation_names_offset      108 u32 fragmentation_names_bytes   text: "name\n" per u64
//      112 u32 outside_names_offset            116 u32 outside_names_bytes         text: "name\n" per u64
//      120 u32 unpooled_offset  124 u32 unpooled_stride_bytes  128 u32 unpooled_count  132 u32 oom_count
//      136 u32 shards_offset_in_device  140 u32 shard_stride_bytes  144 u32 shard_count
//      148 u32 shard_names_offset       152 u32 shard_names_bytes          text: "name\n" per u64    156 u32 0
//   3. Slot i of the devices begins at devices_offset + i * device_stride_bytes; skip it when its `in_use` is 0:
//        0 u32 in_use    4 i32 ordinal    8 char uuid[40]    48 char name[128]    176 char policy[16]    192 char backing[16]
//      208 u64 total_bytes    216 u64 limit_bytes (0: none)    224 u64 driver_free_bytes    232 u64 driver_free_unix_ns (0: never asked)
//      then, at the offsets that the header gives:
//        counters       in the order of the name table; a gauge is two u64 (current, peak), a total is one
//        driver_calls   one u64 per name
//        fragmentation  one u64 per name
//        outside        one u64 per name (of them `host` is not device memory)
//        shards         one u64 per name in each: what a thread did since it last told the device, to be added (modulo 2^64) to the counter's
//                       current value or total of that name
//   4. Slot i of the unpooled names: u32 state (2: valid; 0 ends the list), then a NUL terminated name. One may come twice.
//   All strings are UTF-8 and NUL terminated, but for a uuid that fills its field. A reader must not assume the order or
//   the number of names. Words are read
//   whole but not together: sums may be off by one event while the process lives.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pool/driver/driver_api.hpp"
#include "pool/observe/counters.hpp"

namespace cupool::observe {

inline constexpr std::size_t kMaxDevices = 64;                       ///< as many as CUDA shows to a process
inline constexpr std::uint64_t kLivePageMagic = 0x3147504c55505543;  // "CUPULPG1", little endian
inline constexpr std::uint32_t kLivePageVersion = 2;
inline constexpr std::size_t kUnpooledSlots = 64;
inline constexpr std::size_t kUnpooledName_bytes = 60;

/// Figures that the pool publishes so that a report can be completed from the page alone. free, largest_free, largest_free_remapped and
/// inactive_split belong to one recent moment: they are stored anew every 64 operations, and after each slow one. The bytes that are free now are
/// reserved_bytes - live_bytes - deferred_bytes, which are exact; where that differs from free_bytes, the other three are out of date as well. The
/// at_peak_* were taken at the peak of live bytes, at the first free after it. The order is that of the published name table
/// (kLiveFragmentationNames).
struct LiveFragmentation {
  std::atomic<std::uint64_t> free_bytes{0};
  std::atomic<std::uint64_t> largest_free_bytes{0};
  std::atomic<std::uint64_t> inactive_split_bytes{0};
  std::atomic<std::uint64_t> at_peak_free_bytes{0};
  std::atomic<std::uint64_t> at_peak_largest_free_bytes{0};
  std::atomic<std::uint64_t> at_peak_live_bytes{0};
  std::atomic<std::uint64_t> at_peak_requested_bytes{0};
  std::atomic<std::uint64_t> at_peak_reserved_bytes{0};
  std::atomic<std::uint64_t> largest_free_remapped_bytes{0};  ///< equals largest_free_bytes where nothing can be remapped
  std::atomic<std::uint64_t> at_peak_largest_free_remapped_bytes{0};
  std::atomic<std::uint64_t> at_peak_inactive_split_bytes{0};
};
inline constexpr std::string_view kLiveFragmentationNames =
    "free_bytes\nlargest_free_bytes\ninactive_split_bytes\nat_peak_free_bytes\nat_peak_largest_free_bytes\n"
    "at_peak_live_bytes\nat_peak_requested_bytes\nat_peak_reserved_bytes\nlargest_free_remapped_bytes\n"
    "at_peak_largest_free_remapped_bytes\nat_peak_inactive_split_bytes\n";

/// Memory that the program took outside the pool, by kind; the fields of OutsideBytes in snapshot.hpp.
struct LiveOutside {
  std::atomic<std::uint64_t> arrays{0};
  std::atomic<std::uint64_t> program_vmm{0};
  std::atomic<std::uint64_t> managed{0};
  std::atomic<std::uint64_t> host{0};
  std::atomic<std::uint64_t> graphs{0};
  std::atomic<std::uint64_t> mempools{0};
};
inline constexpr std::string_view kLiveOutsideNames = "arrays\nprogram_vmm\nmanaged\nhost\ngraphs\nmempools\n";

/// What one thread did that the device's counters do not include yet. Written by that thread alone, and by whichever thread adds it to them.
struct alignas(128) LiveShard {
  std::atomic<std::uint64_t> allocations{0};
  std::atomic<std::uint64_t> frees{0};
  std::atomic<std::uint64_t> rung_hole{0};
  std::atomic<std::uint64_t> live_bytes{0};  ///< this and the following are differences, modulo 2^64
  std::atomic<std::uint64_t> requested_bytes{0};
  std::atomic<std::uint64_t> live_blocks{0};
  std::atomic<std::uint64_t> deferred_bytes{0};
};
inline constexpr std::string_view kLiveShardNames = "allocations\nfrees\nrung_hole\nlive_bytes\nrequested_bytes\nlive_blocks\ndeferred_bytes\n";
inline constexpr std::size_t kLiveShards = 32;

/// One device. `in_use` is stored last (release), after the identity fields.
struct alignas(128) LiveDevice {
  std::atomic<std::uint32_t> in_use{0};
  std::int32_t ordinal = -1;
  char uuid[40] = {};   ///< "GPU-xxxxxxxx-xxxx-…": 40 characters fill it, then there is no NUL
  char name[128] = {};  ///< NUL terminated
  char policy[16] = {};
  char backing[16] = {};
  std::uint64_t total_bytes = 0;
  std::uint64_t limit_bytes = 0;                      ///< 0: no limit
  std::atomic<std::uint64_t> driver_free_bytes{0};    ///< the driver's last answer, less what was taken since
  std::atomic<std::uint64_t> driver_free_unix_ns{0};  ///< when that was; 0: never
  Counters counters;
  DriverCallCounts driver_calls{};
  LiveFragmentation fragmentation;
  LiveOutside outside;
  /// Space for kLiveShards shards, which are constructed when they are first used, so that an unused page of memory stays untouched. Zero before.
  alignas(128) std::byte shards[kLiveShards * sizeof(LiveShard)];
};

/// One exported symbol that passed to the driver unpooled.
struct LiveUnpooled {
  std::atomic<std::uint32_t> state{0};  ///< 0: empty, 1: being written, 2: valid
  char name[kUnpooledName_bytes] = {};  ///< NUL terminated
};

enum class LiveState : std::uint32_t { cold = 0, live = 1, exiting = 2, reported = 3 };
/// What a reader asks of the process by storing it in `request`; the process stores 0 when it is done. A reader holds flock(2) on the page from
/// before it asks until it has its answer or gives up, and never overwrites another request.
enum class LiveRequest : std::uint32_t { none = 0, report = 1, trim = 2 };

/// Fixed head of the file; name tables, text and devices follow at the offsets given.
struct LiveHeader {
  std::atomic<std::uint64_t> magic{0};  ///< stored last (release)
  std::uint32_t version = 0;
  std::uint32_t header_bytes = 0;
  std::int32_t pid = 0;
  std::atomic<std::uint32_t> state{0};    ///< LiveState
  std::uint64_t process_start_ticks = 0;  ///< field 22 of /proc/self/stat: with pid, the process's identity
  std::uint64_t start_unix_ns = 0;
  std::uint64_t start_monotonic_ns = 0;
  std::uint32_t counter_names_offset = 0;
  std::uint32_t counter_names_bytes = 0;
  std::uint32_t driver_call_names_offset = 0;
  std::uint32_t driver_call_names_bytes = 0;
  std::uint32_t process_json_offset = 0;
  std::uint32_t process_json_bytes = 0;
  std::uint32_t devices_offset = 0;
  std::uint32_t device_stride_bytes = 0;
  std::uint32_t device_count = 0;  ///< slots, kMaxDevices
  std::uint32_t counters_offset_in_device = 0;
  std::uint32_t driver_calls_offset_in_device = 0;
  std::uint32_t fragmentation_offset_in_device = 0;
  std::atomic<std::uint32_t> request{0};  ///< LiveRequest, written by a reader
  std::uint32_t outside_offset_in_device = 0;
  std::uint32_t fragmentation_names_offset = 0;
  std::uint32_t fragmentation_names_bytes = 0;
  std::uint32_t outside_names_offset = 0;
  std::uint32_t outside_names_bytes = 0;
  std::uint32_t unpooled_offset = 0;
  std::uint32_t unpooled_stride_bytes = 0;
  std::uint32_t unpooled_count = 0;         ///< slots, kUnpooledSlots
  std::atomic<std::uint32_t> oom_count{0};  ///< OOM reports written by the process
  std::uint32_t shards_offset_in_device = 0;
  std::uint32_t shard_stride_bytes = 0;
  std::uint32_t shard_count = 0;  ///< per device, kLiveShards
  std::uint32_t shard_names_offset = 0;
  std::uint32_t shard_names_bytes = 0;
  std::uint32_t unused = 0;
};

/// Whom the page is about; see LiveHeader for the meanings.
struct LiveIdentity {
  std::int32_t pid = 0;
  std::uint64_t process_start_ticks = 0;
  std::uint64_t start_unix_ns = 0;
  std::uint64_t start_monotonic_ns = 0;
};

/// Bytes that a page with `process_json_bytes` of text needs, rounded to whole 4 KiB pages.
std::size_t live_page_bytes(std::size_t process_json_bytes);

/// Lays a page out in `memory`: header, name tables, text, empty device slots, state `live`; publishes the magic last.
/// Preconditions: `memory` is zero, 64-aligned and `bytes` >= live_page_bytes(process_json.size()).
/// nullptr, and nothing written, when it does not fit. The memory must outlive every user of the slots.
LiveHeader* format_live_page(void* memory, std::size_t bytes, const LiveIdentity& identity, std::string_view process_json);

/// The kMaxDevices slots of a page that format_live_page made: what PoolSet takes.
LiveDevice* live_devices(LiveHeader* page);

/// Adds an exported symbol to the page's list of calls that passed unpooled, once (two threads at the same instant may both add it). Lock-free, so
/// callable from any hook. False when the list is full.
bool note_unpooled(LiveHeader* page, std::string_view symbol);

}  // namespace cupool::observe
