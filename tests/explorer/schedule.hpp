// Schedule: what the explorer does, as a list of small operations that can be written down, read back and cut.
//
// Every argument is the number of a slot (a block, a stream, an event ...) or a quantity. An operation that makes no sense in the state in
// which it is met is left out, so any part of a schedule is a schedule: that is what makes it possible to shrink one.
// Text: one operation per line, `<name> t<thread> c<context> <argument>=<number> ...`; `#` begins a comment.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace explorer {

//   kind               name            arguments, in order
#define EXPLORER_OPERATIONS(ROW)                      \
  ROW(alloc_plain, "block", "bytes")                  \
  ROW(alloc_pitch, "block", "bytes")                  \
  ROW(alloc_ordered, "block", "bytes", "stream")      \
  ROW(alloc_pool, "block", "bytes", "stream", "pool") \
  ROW(write, "block", "stream", "ns", "value")        \
  ROW(read, "block", "stream", "ns")                  \
  ROW(copy, "block", "stream", "from")                \
  ROW(free_plain, "block")                            \
  ROW(free_ordered, "block", "stream")                \
  ROW(ask, "block")                                   \
  ROW(info)                                           \
  ROW(record, "event", "stream")                      \
  ROW(wait, "event", "stream")                        \
  ROW(query, "event")                                 \
  ROW(sync_event, "event")                            \
  ROW(query_stream, "stream")                         \
  ROW(sync_stream, "stream")                          \
  ROW(sync_context)                                   \
  ROW(record_context, "event")                        \
  ROW(wait_context, "event")                          \
  ROW(advance, "ns")                                  \
  ROW(spin, "stream", "ns")                           \
  ROW(hold, "stream", "flag", "elsewhere")            \
  ROW(release, "flag")                                \
  ROW(stream_create, "stream", "blocking")            \
  ROW(stream_destroy, "stream")                       \
  ROW(begin, "stream", "capture", "mode")             \
  ROW(fork, "capture", "stream")                      \
  ROW(graph_memory, "capture", "bytes", "ns")         \
  ROW(end, "capture", "graph")                        \
  ROW(launch, "graph", "stream")                      \
  ROW(graph_destroy, "graph")                         \
  ROW(thread_mode, "mode")                            \
  ROW(context_create)                                 \
  ROW(context_destroy, "leaves")                      \
  ROW(peer, "to")                                     \
  ROW(pool_create, "pool")                            \
  ROW(pool_destroy, "pool")                           \
  ROW(trim, "keep")

enum class Kind : std::uint8_t {
#define ROW(name, ...) name,
  EXPLORER_OPERATIONS(ROW)
#undef ROW
};
#define ROW(name, ...) +1
inline constexpr std::size_t kKinds = 0 EXPLORER_OPERATIONS(ROW);
#undef ROW

struct Op {
  Kind kind = Kind::advance;
  std::uint8_t thread = 0;
  std::uint8_t context = 0;       ///< the slot of the context that is current
  std::uint16_t after_calls = 0;  ///< not 0: runs inside the operation before it, at that driver call of it (counted from 1)
  std::array<std::uint32_t, 4> args{};
};

const char* name_of(Kind kind);
std::string to_text(const Op& op);
/// Throws std::runtime_error that names the line.
std::vector<Op> read_schedule(std::istream& in);

}  // namespace explorer
