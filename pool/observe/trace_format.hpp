// The trace: every event of a process in one file (CUPOOL_TRACE=path), readable while it is written and after SIGKILL.
//
// pool/observe/trace_writer stores events straight into mapped pieces of the file, shim/trace_file makes the file and maps
// the pieces. `cupool trace` (scripts/cupool_lib/trace_file.py) and tests/bench/native_trace read it. The file is never
// shortened or rewritten while its process lives, but for pieces at its end that no event has reached.
//
// FORMAT, version 1. Little endian. A word is a u64; records, chunks and the header begin at multiples of 8.
//
//   1. Header at 0. Check `magic` (the bytes "CUPLTRC1"; stored last: a file without it is being made) and `version` == 1.
//        0 u64 magic            8 u32 version          12 u32 header_bytes (the first chunk begins there; >= 128)
//       16 i32 pid             20 u32 state (TraceState)               24 u64 process_start_ticks (field 22 of /proc/PID/stat)
//       32 u64 start_unix_ns   40 u64 dropped: events of all devices that were lost because no chunk was ready
//       48 u32 process_json_offset   52 u32 process_json_bytes         UTF-8 JSON, see process_json() in report.hpp
//       56 u64 readings: how often both clocks were read since the first time
//       64 u64 ticks, 72 u64 unix_ns: the first reading of both clocks
//       80 u64 ticks, 88 u64 unix_ns; 96 u64 ticks, 104 u64 unix_ns: two more. The latest is the second of them when `readings`
//          is even, the first when it is odd, none when it is 0. Times lie on the line through the first and the latest reading.
//      112 to 127 are zero.
//   2. Chunks follow each other without gaps. The last ends where the file ends, or less than 64 bytes or a chunk without magic
//      follow it (the process was killed while it made one). A chunk's header:
//        0 u64 magic (the bytes "CUPLCHK1")             8 u32 chunk_bytes (with these 64; a multiple of 64)
//       12 u32 index (0, 1, 2 … in the file's order)   16 i32 device (ordinal)    20 u32 zero
//       24 u64 base_ticks     32 u64 dropped_before: events that the device lost since its chunk before this one
//       40 u64 sequence: 1, 2, 3 … the order of each device's chunks, as a rule the file's too; stored last. 0: no event is in it yet
//       48 to 63 are zero.
//   3. Records begin at 64. A record is a first word and one word for each bit that is set in its `fields`, lowest bit first:
//        bits 0-7 kind (1 + EventKind)   bits 8-15 fields (TraceField)   bits 16-31 thread (0: the pool itself)
//        bits 32-63 ticks since the event before in this chunk (the first: since base_ticks); 0 when the ticks stand in a word
//      The first word is stored last: a first word of 0 ends the chunk, whatever follows (a store that SIGKILL cut off). Readers
//      skip kinds that they do not know, and the words of bits that they do not know.
//        kind 1 allocate: address, requested_bytes; bytes (of the block) only when it is not requested_bytes rounded up to 512
//        kind 2 free_requested, 3 free_completed: address; the block is the one that was allocated there last
//        kind 4 region_create, 5 region_release: address, bytes
//        kind 6 oom: address is the driver's free bytes; requested_bytes and bytes as for an allocation
//      stream stands where the call named one; origin where there is a call site (bits 0-31; the others are zero).
//   Events of one device are in their order. Those of different devices, and of chunks of different devices, compare by ticks.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cupool::observe {

static_assert(std::endian::native == std::endian::little, "the trace is little endian");

inline constexpr std::uint64_t kTraceMagic = 0x314352544c505543;       // "CUPLTRC1", little endian
inline constexpr std::uint64_t kTraceChunkMagic = 0x314b48434c505543;  // "CUPLCHK1"
inline constexpr std::uint32_t kTraceVersion = 1;
inline constexpr std::size_t kTraceRecordsOffset = 64;  ///< in a chunk
inline constexpr std::size_t kTraceRecordWordsMax = 7;  ///< of version 1's fields

enum class TraceState : std::uint32_t { open = 0, closed = 1 };  ///< closed: the process ended normally

/// Bits of a record's `fields`, in the order in which their words stand.
enum TraceField : std::uint64_t {
  kTraceAddress = 1,
  kTraceRequestedBytes = 2,
  kTraceBytes = 4,
  kTraceStream = 8,
  kTraceOrigin = 16,
  kTraceTicks = 32,
};
inline constexpr unsigned kTraceFieldsShift = 8;
inline constexpr unsigned kTraceThreadShift = 16;
inline constexpr unsigned kTraceTicksShift = 32;

/// Both clocks at one moment.
struct TraceReading {
  std::uint64_t ticks = 0;
  std::uint64_t unix_ns = 0;
};

/// The head of the file.
struct TraceHeader {
  std::atomic<std::uint64_t> magic{0};
  std::uint32_t version = 0;
  std::uint32_t header_bytes = 0;
  std::int32_t pid = 0;
  std::atomic<std::uint32_t> state{0};
  std::uint64_t process_start_ticks = 0;
  std::uint64_t start_unix_ns = 0;
  std::atomic<std::uint64_t> dropped{0};
  std::uint32_t process_json_offset = 0;
  std::uint32_t process_json_bytes = 0;
  std::atomic<std::uint64_t> readings{0};
  TraceReading first_reading;
  TraceReading later_readings[2];
  std::uint64_t reserved[2] = {};
};

/// The head of a chunk.
struct TraceChunkHeader {
  std::atomic<std::uint64_t> magic{0};
  std::uint32_t chunk_bytes = 0;
  std::uint32_t index = 0;
  std::int32_t device = 0;
  std::uint32_t reserved = 0;
  std::uint64_t base_ticks = 0;
  std::uint64_t dropped_before = 0;
  std::atomic<std::uint64_t> sequence{0};
  std::uint64_t reserved_too[2] = {};
};

/// Who the trace is of; as LiveIdentity, for the same fields.
struct TraceIdentity {
  std::int32_t pid = 0;
  std::uint64_t process_start_ticks = 0;
  std::uint64_t start_unix_ns = 0;
};

/// Bytes of the header with so much text, in whole pages of `page_bytes` (a power of two).
std::size_t trace_header_bytes(std::size_t process_json_bytes, std::size_t page_bytes);
/// Lays the header out in `memory`, which is zero and `header_bytes` long; the magic last.
TraceHeader* format_trace_header(void* memory, std::size_t header_bytes, const TraceIdentity& identity, TraceReading first_reading,
                                 std::string_view process_json);
/// Another reading of both clocks; one thread at a time.
void add_trace_reading(TraceHeader& header, TraceReading reading);
/// Lays an unused chunk out in `memory`, which is zero.
void format_trace_chunk(void* memory, std::size_t chunk_bytes, std::uint32_t index);

}  // namespace cupool::observe
