// StepEnds by itself: what is taken for the end of a step, from what lives alone.
#include <catch2/catch.hpp>

#include <cstdint>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/device/step_ends.hpp"

using namespace cupool;
using namespace cupool::device;

namespace {

/// A program of which only sizes are known.
class Program {
 public:
  StepEnds ends;

  void allocate(std::uint64_t bytes) {
    const StepEnds::Live before = live_;
    live_.bytes += bytes;
    ++live_.blocks;
    peak_bytes_ = std::max(peak_bytes_, live_.bytes);
    ends.note(before, live_, peak_bytes_, ++allocations_, kLeast_bytes);
  }
  /// True: a step has ended with it.
  bool free(std::uint64_t bytes) {
    live_.bytes -= bytes;
    --live_.blocks;
    return ends.has_ended(live_.bytes);
  }
  bool begins_again() const { return ends.begins_again(live_.bytes, peak_bytes_); }
  bool is_late() const { return ends.is_late(allocations_); }
  bool has_come_down() const { return ends.has_come_down(peak_bytes_); }
  /// Up by so many blocks, with a pair in between each, and down again: after how many frees of the way down did it end? -1: it did not.
  int step(int blocks, std::uint64_t bytes) {
    for (int i = 0; i < blocks; ++i) {
      allocate(bytes);
      allocate(bytes / 2);
      REQUIRE_FALSE(free(bytes / 2));
    }
    int ended_after = -1;
    for (int i = 0; i < blocks; ++i) {
      if (!free(bytes)) continue;
      CHECK(ended_after == -1);
      ended_after = i + 1;
    }
    return ended_after;
  }

 private:
  static constexpr std::uint64_t kLeast_bytes = 4 * kMiB;
  StepEnds::Live live_;
  std::uint64_t peak_bytes_ = 0;
  std::uint64_t allocations_ = 0;
};

}  // namespace

TEST_CASE("step ends: with the last free of each step, from the second on") {
  Program program;
  for (int i = 0; i < 20; ++i) program.allocate(64 * kMiB);
  program.step(12, 16 * kMiB);
  for (int i = 0; i < 10; ++i) CHECK(program.step(12, 16 * kMiB) == 12);
}

TEST_CASE("step ends: a program of which nothing stays has them too") {
  Program program;
  program.step(12, 16 * kMiB);
  for (int i = 0; i < 3; ++i) CHECK(program.step(12, 16 * kMiB) == 12);
}

TEST_CASE("step ends: where more lives than at the end of the last step, none until that is known") {
  Program program;
  program.allocate(64 * kMiB);
  for (int i = 0; i < 20; ++i) program.step(12, 16 * kMiB);
  for (int i = 0; i < 12; ++i) program.allocate(16 * kMiB);  // the optimizer's state
  CHECK(program.step(12, 16 * kMiB) == -1);
  int steps = 0;
  while (program.step(12, 16 * kMiB) != 12 && steps < 10) ++steps;
  CHECK(steps <= 2);
  CHECK(program.step(12, 16 * kMiB) == 12);
}

TEST_CASE("step ends: where each step leaves a little more, too") {
  Program program;
  for (int i = 0; i < 20; ++i) program.allocate(64 * kMiB);
  program.step(12, 16 * kMiB);
  for (int i = 0; i < 10; ++i) {
    program.allocate(kMiB);
    CHECK(program.step(12, 16 * kMiB) == 12);
  }
}

TEST_CASE("step ends: where less lives from now on, the next step ends there") {
  Program program;
  for (int i = 0; i < 8; ++i) program.allocate(32 * kMiB);
  for (int i = 0; i < 3; ++i) program.step(12, 16 * kMiB);
  for (int i = 0; i < 4; ++i) program.free(32 * kMiB);
  program.step(20, 16 * kMiB);
  CHECK(program.step(20, 16 * kMiB) == 20);
}

TEST_CASE("step ends: a block that goes round is no step") {
  Program program;
  program.allocate(64 * kMiB);
  for (int i = 0; i < 1000; ++i) {
    program.allocate(64 * kMiB);
    REQUIRE_FALSE(program.free(64 * kMiB));
  }
  CHECK(program.ends.below_bytes() == 0);
}

TEST_CASE("step ends: nor is one of little memory") {
  Program program;
  program.allocate(64 * kMiB);
  for (int i = 0; i < 100; ++i) CHECK(program.step(16, 64 * kKiB) == -1);
}

TEST_CASE("step ends: a few blocks that go round end one in two rounds, since each end may cost an event") {
  Program program;
  program.allocate(64 * kMiB);
  int ends = 0;
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 4; ++i) program.allocate(16 * kMiB);
    for (int i = 0; i < 4; ++i) ends += program.free(16 * kMiB) ? 1 : 0;
  }
  CHECK(ends >= 40);
  CHECK(ends <= 50);
}

TEST_CASE("step ends: a dip on the way is none") {
  Program program;
  program.allocate(64 * kMiB);
  for (int i = 0; i < 3; ++i) program.step(12, 16 * kMiB);
  for (int i = 0; i < 12; ++i) program.allocate(16 * kMiB);
  for (int dip = 0; dip < 2; ++dip) {
    for (int i = 0; i < 6; ++i) REQUIRE_FALSE(program.free(16 * kMiB));
    for (int i = 0; i < 6; ++i) program.allocate(16 * kMiB);
  }
  for (int i = 0; i < 11; ++i) REQUIRE_FALSE(program.free(16 * kMiB));
  CHECK(program.free(16 * kMiB));
}

TEST_CASE("step ends: a job begins again once it has come down twice") {
  Program program;
  program.allocate(64 * kMiB);
  program.step(12, 16 * kMiB);
  program.allocate(kMiB);
  CHECK_FALSE(program.begins_again());
  for (int i = 0; i < 8; ++i) program.allocate(16 * kMiB);
  CHECK_FALSE(program.begins_again());
  for (int i = 0; i < 8; ++i) program.free(16 * kMiB);
  program.step(14, 16 * kMiB);  // higher than the first one
  program.allocate(kMiB);
  CHECK(program.begins_again());
}

TEST_CASE("step ends: or is near its peak once more, however little of what lives comes and goes") {
  for (const std::uint64_t staying_bytes : {64 * kMiB, 2 * kGiB}) {
    Program program;
    program.allocate(staying_bytes);
    program.step(12, 16 * kMiB);
    for (int i = 0; i < 8; ++i) program.allocate(16 * kMiB);
    CHECK_FALSE(program.begins_again());
    for (int i = 0; i < 2; ++i) program.allocate(16 * kMiB);
    CHECK(program.begins_again());
  }
}

TEST_CASE("step ends: a job is in its second step until what lives is seen to have come down again") {
  Program program;
  program.allocate(64 * kMiB);
  CHECK(program.ends.has_fallen_once_at_most());
  program.step(12, 16 * kMiB);
  program.step(12, 16 * kMiB);
  CHECK(program.ends.has_fallen_once_at_most());
  program.allocate(kMiB);
  CHECK_FALSE(program.ends.has_fallen_once_at_most());
}

TEST_CASE("step ends: a step is late that began after twice its allocations, and had an earlier one set the peak") {
  Program program;
  program.step(12, 16 * kMiB);
  program.step(12, 16 * kMiB);
  CHECK_FALSE(program.is_late());
  for (int i = 0; i < 3; ++i) {
    CHECK(program.step(12, 16 * kMiB) == 12);
    CHECK(program.is_late());
  }
  CHECK(program.step(14, 16 * kMiB) == 14);
  CHECK_FALSE(program.is_late());
  CHECK(program.step(14, 16 * kMiB) == 14);
  CHECK(program.is_late());
}

TEST_CASE("step ends: while the peak rises a job does not begin again, nor where what lives goes down by a fifth only") {
  Program program;
  for (int i = 0; i < 4; ++i) program.step(12, 16 * kMiB);
  for (int i = 0; i < 13; ++i) program.allocate(16 * kMiB);
  CHECK_FALSE(program.begins_again());
  for (int i = 0; i < 2; ++i) program.free(16 * kMiB);
  program.allocate(kMiB);
  CHECK_FALSE(program.begins_again());
  for (int i = 0; i < 3; ++i) program.free(16 * kMiB);
  program.allocate(kMiB);
  CHECK(program.begins_again());
}

TEST_CASE("step ends: blocks that come and go before a job's first step are none of its steps") {
  Program program;
  for (int i = 0; i < 4; ++i) program.step(2, kMiB);
  for (int i = 0; i < 12; ++i) program.allocate(16 * kMiB);
  for (int i = 0; i < 12; ++i) program.free(16 * kMiB);
  CHECK_FALSE(program.begins_again());
}

TEST_CASE("step ends: a job has come down once it did so by several blocks, from no trifle beside its peak") {
  Program program;
  for (int i = 0; i < 20; ++i) {  // one that goes round
    program.allocate(16 * kMiB);
    program.free(16 * kMiB);
  }
  program.allocate(kMiB);
  CHECK_FALSE(program.has_come_down());
  program.step(4, 8 * kMiB);
  program.allocate(kMiB);
  CHECK(program.has_come_down());
  program.allocate(kGiB);  // beside which that was one
  CHECK_FALSE(program.has_come_down());
}
