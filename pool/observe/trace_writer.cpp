// See trace_writer.hpp. A process that is killed keeps what it has stored, in program order, so the release store of the first word is enough: where
// the first word is there, all of its record is.
#include "pool/observe/trace_writer.hpp"

#include "pool/core/bytes.hpp"
#include "pool/observe/trace_format.hpp"

namespace cupool::observe {

namespace {

/// The words that an event of this kind always has.
constexpr std::uint64_t fields_of(EventKind kind) {
  switch (kind) {
    case EventKind::allocate:
    case EventKind::oom: return kTraceAddress | kTraceRequestedBytes;
    case EventKind::free_requested:
    case EventKind::free_completed: return kTraceAddress;
    case EventKind::region_create:
    case EventKind::region_release: return kTraceAddress | kTraceBytes;
  }
  return kTraceAddress | kTraceRequestedBytes | kTraceBytes;
}

}  // namespace

bool TraceWriter::next_chunk(std::uint64_t ticks) noexcept {
  TraceChunk* fresh = sink_->take();
  if (fresh == nullptr) return false;
  if (chunk_ != nullptr) sink_->retire(chunk_);
  chunk_ = fresh;
  cursor_ = reinterpret_cast<std::uint64_t*>(fresh->memory + kTraceRecordsOffset);
  end_ = reinterpret_cast<std::uint64_t*>(fresh->memory + fresh->bytes);
  last_ticks_ = ticks;
  auto* header = reinterpret_cast<TraceChunkHeader*>(fresh->memory);
  header->device = device_;
  header->base_ticks = ticks;
  header->dropped_before = lost_;
  header->sequence.store(++sequence_, std::memory_order_release);
  lost_ = 0;
  return true;
}

void TraceWriter::record(const Event& event, std::uint64_t stream) noexcept {
  if (end_ - cursor_ < static_cast<std::ptrdiff_t>(kTraceRecordWordsMax) && !next_chunk(event.ticks)) {
    ++lost_;
    sink_->lose();
    return;
  }
  std::uint64_t fields = fields_of(event.kind);
  if ((fields & kTraceRequestedBytes) != 0 && event.bytes != round_request(event.requested_bytes)) fields |= kTraceBytes;
  if (stream != 0) fields |= kTraceStream;
  if (event.site != 0) fields |= kTraceOrigin;
  std::uint64_t elapsed = event.ticks - last_ticks_;  // wraps around for an event that was timed before its turn
  if (elapsed >> 32 != 0) {
    fields |= kTraceTicks;
    elapsed = 0;
  }
  last_ticks_ = event.ticks;
  std::uint64_t* word = cursor_ + 1;
  *word++ = event.address;
  if ((fields & kTraceRequestedBytes) != 0) *word++ = event.requested_bytes;
  if ((fields & kTraceBytes) != 0) *word++ = event.bytes;
  if ((fields & kTraceStream) != 0) *word++ = stream;
  if ((fields & kTraceOrigin) != 0) *word++ = event.site;
  if ((fields & kTraceTicks) != 0) *word++ = event.ticks;
  const std::uint64_t first = (static_cast<std::uint64_t>(event.kind) + 1) | fields << kTraceFieldsShift |
                              static_cast<std::uint64_t>(event.thread) << kTraceThreadShift | elapsed << kTraceTicksShift;
  std::atomic_ref<std::uint64_t>(*cursor_).store(first, std::memory_order_release);
  cursor_ = word;
}

}  // namespace cupool::observe
