// TraceWriter: turns one device's events into the records of the trace (trace_format.hpp).
//
// Stores into a chunk that is mapped already, the record's first word last; takes the next chunk from the sink when this
// one is full, counts the event as lost when none is ready. Never: a system call, an allocation, a wait.
// Thread rule: one writer at a time, it holds the device pool's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool/observe/event.hpp"
#include "pool/observe/trace_sink.hpp"

namespace cupool::observe {

class TraceWriter {
 public:
  /// `sink` null: nothing is traced.
  TraceWriter(TraceSink* sink, int device) : sink_(sink), device_(device) {}

  bool is_on() const noexcept { return sink_ != nullptr; }
  /// Precondition: is_on(). `stream` 0: the call named none.
  void record(const Event& event, std::uint64_t stream) noexcept;

 private:
  bool next_chunk(std::uint64_t ticks) noexcept;

  TraceSink* sink_;
  TraceChunk* chunk_ = nullptr;
  std::uint64_t* cursor_ = nullptr;  ///< where the next record goes
  std::uint64_t* end_ = nullptr;
  std::uint64_t last_ticks_ = 0;
  std::uint64_t lost_ = 0;  ///< events lost since the chunk began
  std::uint64_t sequence_ = 0;
  int device_;
};

}  // namespace cupool::observe
