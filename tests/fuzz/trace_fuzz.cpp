// Whatever a file holds: the replay's reader says what is wrong with it, or gives events that can be replayed.
//
// Input: the file, a text trace or one of CUPOOL_TRACE, compressed or not.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/bench/trace.hpp"

namespace {

void require(bool holds, const char* sentence) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", sentence);
  std::abort();
}

void check_replayable(const trace::Trace& trace) {
  std::vector<std::uint64_t> live_bytes_of(trace.allocations, 0);
  std::uint64_t begun = 0;
  std::uint64_t ended = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t peak_bytes = 0;
  for (const trace::Event& event : trace.events) {
    require(event.slot < trace.allocations, "a slot is an allocation's");
    if (event.is_free) {
      require(live_bytes_of[event.slot] != 0, "only a live block is freed");
      live_bytes -= live_bytes_of[event.slot];
      live_bytes_of[event.slot] = 0;
      ++ended;
      continue;
    }
    require(event.slot == begun++, "slots are counted in the order of their allocations");
    require(event.bytes != 0 && event.bytes <= std::uint64_t{1} << 50, "a block has a size that can be");
    live_bytes_of[event.slot] = event.bytes;
    live_bytes += event.bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
  }
  require(begun == trace.allocations && ended == trace.frees, "the counts are those of the events");
  require(peak_bytes == trace.peak_live_bytes, "the peak is the events'");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const int file = memfd_create("trace", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, bytes, 0) != static_cast<ssize_t>(bytes)) std::abort();
  try {
    check_replayable(trace::load(path));
  } catch (const trace::BadTrace& error) {
    const std::string said = error.what();
    require(said.size() > path.size() && said.compare(0, path.size(), path) == 0, "an error names the file");
    require(said.compare(path.size(), 7, ": byte ") == 0 || said[path.size()] == ':', "and the place");
  }
  return 0;
}
