// What was freed at the driver in the order of streams, until somebody has waited for it: pool/device/driver_backlog.hpp.
#include <catch2/catch.hpp>

#include "pool/device/driver_backlog.hpp"

using cupool::device::DriverBacklog;

namespace {
std::uint64_t all(const DriverBacklog& backlog) { return backlog.sums().pooled_bytes + backlog.sums().plain_bytes; }
}  // namespace

TEST_CASE("driver backlog: a wait for a stream covers what was freed on it before, and nothing else") {
  DriverBacklog backlog;
  backlog.add(16, {100, 0}, 1);
  backlog.add(32, {0, 10}, 2);
  CHECK(backlog.sums().pooled_bytes == 100);
  CHECK(backlog.sums().plain_bytes == 10);
  backlog.waited_for(16, 2);
  CHECK(all(backlog) == 10);
  backlog.add(32, {1, 0}, 3);
  backlog.waited_for(32, 2);  // began before the newest free there
  CHECK(all(backlog) == 11);
  backlog.waited_for(48, 3);
  CHECK(all(backlog) == 11);
  backlog.waited_for(32, 3);
  CHECK(all(backlog) == 0);
}

TEST_CASE("driver backlog: what an ended stream left is not its successor's, and goes with a wait for everything") {
  DriverBacklog backlog;
  backlog.add(16, {100, 0}, 1);
  backlog.stream_ending(16);
  backlog.add(16, {7, 0}, 2);
  backlog.waited_for(16, 2);
  CHECK(all(backlog) == 100);
  backlog.add(0, {3, 0}, 3);
  backlog.stream_ending(0);
  backlog.is_over(2);
  CHECK(all(backlog) == 103);
  backlog.is_over(backlog.newest());
  CHECK(all(backlog) == 0);
}

TEST_CASE("driver backlog: of more streams than it tells apart nothing is lost") {
  DriverBacklog backlog;
  for (std::uint64_t stream = 1; stream <= 1000; ++stream) backlog.add(16 * stream, {1, 0}, stream);
  CHECK(all(backlog) == 1000);
  backlog.waited_for(16 * 1000, 1000);
  CHECK(all(backlog) == 999);
  backlog.waited_for(16, 1000);  // among the rest by now
  CHECK(all(backlog) == 999);
  backlog.is_over(1000);
  CHECK(all(backlog) == 0);
}
