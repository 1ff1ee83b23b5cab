// Reads recorded allocation traces (gzip or plain text): a first line "# {metadata}", then "a <id> <bytes> <stream>"
// and "f <id>"; and what CUPOOL_TRACE recorded (native_trace.hpp). Everything is checked while reading: a file that is not a
// trace ends in an error with its line or offset.
// No CUDA, no cupool: part of the unmodified program that the demo runs.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace trace {

inline constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 50;  ///< a larger block is not believed

struct Event {
  std::uint64_t bytes = 0;  ///< of an allocation; 0 for a free
  std::uint32_t slot = 0;   ///< which block: the index of its allocation, counted from 0
  bool is_free = false;
  std::uint32_t stream = 0;  ///< of an allocation, as numbered in the text; 0 where a format does not say
};

struct Trace {
  std::string metadata;  ///< the JSON text of the first line
  std::vector<Event> events;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t peak_live_bytes = 0;  ///< of the requested sizes
};

/// "FILE:LINE: what is wrong", or "FILE: byte OFFSET: …".
struct BadTrace : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws BadTrace.
Trace load(const std::string& path);

}  // namespace trace
