// Clocks: what is ordered before what, by vector clocks, as a program can know it from the CUDA documentation.
//
// A timeline is one stream (created, legacy, or a thread's own). Its clock says, for every timeline, how many operations of that are ordered before
// the next operation of this. `host` is what the host has seen the end of. Only facts that hold under every legal execution go in, so that
// whatever these clocks allow a correct program may do. Thread rule: the baton's holder.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace explorer {

inline constexpr int kTimelines = 96;

struct Clock {
  std::array<std::uint32_t, kTimelines> seen{};
  /// Work that waits for the host (a bit each) and that this may come after: unlike the counts, rather too much than too little.
  std::uint64_t held = 0;

  void join(const Clock& other) {
    for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = std::max(seen[i], other.seen[i]);
    held |= other.held;
  }
  std::uint32_t of(int timeline) const { return seen[static_cast<std::size_t>(timeline)]; }
};

/// One operation that touched something: the count-th of its timeline.
struct Access {
  int timeline = -1;
  std::uint32_t count = 0;
};

struct Timeline {
  bool used = false;
  bool retired = false;   ///< its stream was destroyed; work of it may be in flight
  bool blocking = false;  ///< ordered with the legacy stream of its context
  int context = -1;
  int legacy = -1;  ///< the timeline of that stream; itself for a legacy stream
  std::uint32_t count = 0;
  Clock clock;
};

class Clocks {
 public:
  Timeline& at(int timeline) { return lines_[static_cast<std::size_t>(timeline)]; }
  const Timeline& at(int timeline) const { return lines_[static_cast<std::size_t>(timeline)]; }

  /// None when all are taken by streams whose end the host has not seen.
  std::optional<int> open(int context, bool blocking, int legacy) {
    for (int i = 0; i < kTimelines; ++i) {
      Timeline& line = at(i);
      if (line.used && (!line.retired || host.of(i) < line.count)) continue;
      const std::uint32_t count = line.count;
      line = Timeline{true, false, blocking, context, legacy < 0 ? i : legacy, count, host};
      return i;
    }
    return std::nullopt;
  }

  /// An operation of `timeline`: it comes after what the host has seen, and after the legacy stream or, for that one, after all blocking streams.
  Access submit(int timeline) {
    Timeline& line = at(timeline);
    if (line.legacy == timeline) {
      for (const Timeline& other : lines_)
        if (other.used && !other.retired && other.blocking && other.legacy == timeline) line.clock.join(other.clock);
    } else if (line.blocking) {
      line.clock.join(at(line.legacy).clock);
    }
    return touch(timeline);
  }

  /// A place in `timeline` that may be an operation of the device or none: a stream-ordered allocation or free.
  Access touch(int timeline) {
    Timeline& line = at(timeline);
    line.clock.join(host);
    may_follow(timeline);
    line.clock.seen[static_cast<std::size_t>(timeline)] = ++line.count;
    return {timeline, line.count};
  }

  /// An operation of `timeline` that there may be: what it would wait for counts as held, but nothing as ordered.
  void may_follow(int timeline) {
    Timeline& line = at(timeline);
    if (line.legacy == timeline) {
      for (const Timeline& other : lines_)
        if (other.used && (other.blocking || other.retired) && other.context == line.context) line.clock.held |= other.clock.held;
    } else if (line.blocking) {
      line.clock.held |= at(line.legacy).clock.held;
    }
  }

  bool is_before(const Access& access, int timeline) const {
    if (access.timeline < 0 || access.timeline == timeline) return true;
    return std::max(at(timeline).clock.of(access.timeline), host.of(access.timeline)) >= access.count;
  }
  bool is_over(const Access& access) const { return access.timeline < 0 || host.of(access.timeline) >= access.count; }

  /// The host has seen the end of all this.
  void saw(const Clock& clock) {
    host.join(clock);
    host.held = 0;
  }

  /// What waiting for the whole of these contexts waits for.
  template <class IsMember> Clock of_contexts(IsMember&& is_member) const {
    Clock all;
    for (const Timeline& line : lines_)
      if (line.used && is_member(line.context)) all.join(line.clock);
    return all;
  }

  Clock host;

 private:
  std::array<Timeline, kTimelines> lines_{};
};

}  // namespace explorer
