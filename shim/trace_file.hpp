// TraceFile: the file behind CUPOOL_TRACE. Makes it, maps its chunks for the pool's writers and unmaps the full ones.
//
// It is made when the process first asks for device memory, with mode 0600, and never in the place of a file or link that is there. Space is reserved
// before it is mapped, so that a full disk ends the trace with one warning, never with a SIGBUS. A forked child does not inherit the mappings. Never
// calls the driver, never runs under a pool's lock, starts no thread. Format: pool/observe/trace_format.hpp. Thread rule: any thread; finish once.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "pool/observe/trace_format.hpp"
#include "pool/observe/trace_sink.hpp"
#include "shim/file_identity.hpp"

namespace cupool::shim {

class TraceFile {
 public:
  /// `path`: absolute; empty: no trace, and everything below does nothing. `process_json`: the same text as in the live page.
  TraceFile(std::string path, const observe::TraceIdentity& identity, std::string process_json);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  /// What the pool writes to; nullptr without a trace.
  observe::TraceSink* sink() { return path_.empty() ? nullptr : &sink_; }

  /// Called before every allocation: makes the file the first time, and is one load afterwards.
  void begin() noexcept {
    if (!is_begun_.load(std::memory_order_acquire)) [[unlikely]]
      begin_once();
  }
  /// Called after every call, with no lock held: maps new chunks in the place of those that writers have taken. One load where there is nothing to
  /// do.
  void upkeep() noexcept {
    if (sink_.has_work()) [[unlikely]]
      refill();
  }
  /// The process ends: cuts the unused end of the file off and marks the trace as closed. Events may still come.
  void finish() noexcept;

  /// Events that found no room.
  std::uint64_t dropped() const { return sink_.dropped(); }
  /// Why there is no trace, or why it ends early; empty: nothing is wrong.
  std::string warning();

 private:
  void begin_once() noexcept;
  void refill() noexcept;
  int make();
  int create();
  int map_header();
  int add_chunk();
  void* map(std::size_t offset_bytes, std::size_t bytes, int* error);
  int reserve(std::size_t end_bytes);
  bool has_descriptor();
  void fill_spares();
  void give_spares_back();
  void give_up(const char* what, int error);
  void read_clocks();

  const std::string path_;
  const observe::TraceIdentity identity_;
  std::string process_json_;
  const observe::TraceReading first_reading_;
  observe::TraceSink sink_;
  std::atomic<bool> is_begun_;
  std::mutex mutex_;  ///< guards what follows; never held while a pool's lock is
  observe::TraceHeader* header_ = nullptr;
  int file_ = -1;
  FileIdentity opened_;
  std::size_t file_bytes_ = 0;
  std::uint32_t chunks_ = 0;
  std::deque<observe::TraceChunk> nodes_;  ///< one per chunk; a deque, because writers hold their addresses
  bool has_ended_ = false;                 ///< no more chunks are added
  std::string warning_;
};

}  // namespace cupool::shim
