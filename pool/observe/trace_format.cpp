// Lays the trace file's headers out. The numbers asserted here are the published format: change them with kTraceVersion only.
#include "pool/observe/trace_format.hpp"

#include <cstring>
#include <new>

#include "pool/core/bytes.hpp"
#include "pool/observe/event.hpp"

namespace cupool::observe {

#define TRACE_OFFSET(type, member, offset) static_assert(offsetof(type, member) == (offset), "published format")
TRACE_OFFSET(TraceHeader, magic, 0);
TRACE_OFFSET(TraceHeader, version, 8);
TRACE_OFFSET(TraceHeader, header_bytes, 12);
TRACE_OFFSET(TraceHeader, pid, 16);
TRACE_OFFSET(TraceHeader, state, 20);
TRACE_OFFSET(TraceHeader, process_start_ticks, 24);
TRACE_OFFSET(TraceHeader, start_unix_ns, 32);
TRACE_OFFSET(TraceHeader, dropped, 40);
TRACE_OFFSET(TraceHeader, process_json_offset, 48);
TRACE_OFFSET(TraceHeader, process_json_bytes, 52);
TRACE_OFFSET(TraceHeader, readings, 56);
TRACE_OFFSET(TraceHeader, first_reading, 64);
TRACE_OFFSET(TraceHeader, later_readings, 80);
static_assert(sizeof(TraceHeader) == 128, "published format");
TRACE_OFFSET(TraceChunkHeader, magic, 0);
TRACE_OFFSET(TraceChunkHeader, chunk_bytes, 8);
TRACE_OFFSET(TraceChunkHeader, index, 12);
TRACE_OFFSET(TraceChunkHeader, device, 16);
TRACE_OFFSET(TraceChunkHeader, base_ticks, 24);
TRACE_OFFSET(TraceChunkHeader, dropped_before, 32);
TRACE_OFFSET(TraceChunkHeader, sequence, 40);
static_assert(sizeof(TraceChunkHeader) == kTraceRecordsOffset, "published format");
#undef TRACE_OFFSET
static_assert(static_cast<int>(EventKind::allocate) == 0 && static_cast<int>(EventKind::free_requested) == 1 &&
                  static_cast<int>(EventKind::free_completed) == 2 && static_cast<int>(EventKind::region_create) == 3 &&
                  static_cast<int>(EventKind::region_release) == 4 && static_cast<int>(EventKind::oom) == 5,
              "published format: a new kind goes to the end");

std::size_t trace_header_bytes(std::size_t process_json_bytes, std::size_t page_bytes) {
  return align_up(sizeof(TraceHeader) + process_json_bytes, page_bytes);
}

TraceHeader* format_trace_header(void* memory, std::size_t header_bytes, const TraceIdentity& identity, TraceReading first_reading,
                                 std::string_view process_json) {
  auto* header = new (memory) TraceHeader;
  header->version = kTraceVersion;
  header->header_bytes = static_cast<std::uint32_t>(header_bytes);
  header->pid = identity.pid;
  header->process_start_ticks = identity.process_start_ticks;
  header->start_unix_ns = identity.start_unix_ns;
  header->process_json_offset = sizeof(TraceHeader);
  header->process_json_bytes = static_cast<std::uint32_t>(process_json.size());
  header->first_reading = first_reading;
  std::memcpy(static_cast<std::byte*>(memory) + sizeof(TraceHeader), process_json.data(), process_json.size());
  header->magic.store(kTraceMagic, std::memory_order_release);
  return header;
}

void add_trace_reading(TraceHeader& header, TraceReading reading) {
  const std::uint64_t before = header.readings.load(std::memory_order_relaxed);
  header.later_readings[before % 2] = reading;
  header.readings.store(before + 1, std::memory_order_release);
}

void format_trace_chunk(void* memory, std::size_t chunk_bytes, std::uint32_t index) {
  auto* chunk = new (memory) TraceChunkHeader;
  chunk->chunk_bytes = static_cast<std::uint32_t>(chunk_bytes);
  chunk->index = index;
  chunk->magic.store(kTraceChunkMagic, std::memory_order_release);
}

}  // namespace cupool::observe
