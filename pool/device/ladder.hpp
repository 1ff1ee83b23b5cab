// Ladder: the rungs that an allocation climbs. ladder.cpp says what each tries, climb.cpp climbs them. For DevicePool only.
#pragma once

#include <cstdint>

#include "pool/device/device_pool.hpp"

namespace cupool::device {

/// A rung's answer: a block; nullptr (try the next rung); or an error that the program's own call would have met natively.
using Climbed = Result<heap::Extent*>;

struct Ladder {
  struct Rung {
    const char* name;
    observe::Total observe::Counters::*served;
    Climbed (*climb)(DevicePool& pool, Attempt& attempt);
  };

  static Climbed own(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed better(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed hole(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed crack(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed any_hole(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed retire(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed retire_for_all(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed ask(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed magazines(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed all_magazines(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed wait(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed elsewhere(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed elsewhere_at_leisure(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed grow(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed steal(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed idle_lanes(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed lanes(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed remap(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed aside(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed release(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed instead(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed poll(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed mempools(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed after_trim(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed graphs(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);
  static Climbed native(DevicePool& pool, Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);

  static Climbed take_what_came(DevicePool& pool, Attempt& attempt, bool has_retired) CUPOOL_REQUIRES(pool.device_.lock);
  static bool may_still_come(DevicePool& pool, const Attempt& attempt) CUPOOL_REQUIRES(pool.device_.lock);

  static const Rung kRungs[23];
};

}  // namespace cupool::device
