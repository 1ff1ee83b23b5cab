// What came after an OOM, by the timeline.
#include <catch2/catch.hpp>

#include "pool/observe/aftermath.hpp"
#include "samples.hpp"

using namespace cupool::observe;

namespace {

OomRecord refused(std::uint64_t bytes, std::uint64_t driver_free_bytes, std::uint64_t allocations_before) {
  OomRecord oom;
  oom.requested_bytes = oom.evidence.request_bytes = bytes;
  oom.evidence.driver_free_bytes = driver_free_bytes;
  oom.allocations_before = allocations_before;
  return oom;
}

Event event(EventKind kind, std::uint64_t bytes, std::uint64_t address = 0) {
  Event made;
  made.kind = kind;
  made.bytes = made.requested_bytes = bytes;
  made.address = address;
  made.thread = 1;
  return made;
}

using Answers = std::vector<std::optional<bool>>;

}  // namespace

TEST_CASE("an OOM was survived if a block of its size came after it, before the next one or later") {
  Snapshot snapshot;
  snapshot.devices.push_back(samples::empty_device(samples::kGiB));
  DeviceSnapshot& device = snapshot.devices.front();
  samples::set_counter(device, "allocations", 3, 3);
  snapshot.ooms = {refused(1000, 1, 1), refused(5000, 2, 2), refused(1000, 3, 3)};
  device.timeline = {event(EventKind::allocate, 9000), event(EventKind::oom, 1000, 1),   event(EventKind::allocate, 500),
                     event(EventKind::oom, 5000, 2),   event(EventKind::allocate, 1000), event(EventKind::free_requested, 1000),
                     event(EventKind::oom, 1000, 3)};
  CHECK(served_since(snapshot) == Answers{true, false, false});
  device.timeline.push_back(event(EventKind::allocate, 5000));
  CHECK(served_since(snapshot) == Answers{true, true, true});
}

TEST_CASE("a block that the driver refused to free is none that was allocated since") {
  Snapshot snapshot;
  snapshot.devices.push_back(samples::empty_device(samples::kGiB));
  DeviceSnapshot& device = snapshot.devices.front();
  samples::set_counter(device, "allocations", 3, 3);
  snapshot.ooms = {refused(1000, 1, 3)};
  device.timeline = {event(EventKind::oom, 1000, 1), event(EventKind::free_requested, 2000), event(EventKind::free_completed, 2000),
                     event(EventKind::allocate, 2000)};
  device.timeline.back().thread = kPoolItself;
  CHECK(served_since(snapshot) == Answers{false});
}

TEST_CASE("of an OOM that is older than the timeline a yes is known, and a no only if nothing was allocated since") {
  Snapshot snapshot;
  snapshot.devices.push_back(samples::empty_device(samples::kGiB));
  DeviceSnapshot& device = snapshot.devices.front();
  samples::set_counter(device, "allocations", 7, 7);
  snapshot.ooms = {refused(1000, 1, 1), refused(2000, 2, 4), refused(500, 3, 7)};
  CHECK(served_since(snapshot) == Answers{std::nullopt, std::nullopt, false});
  device.timeline = {event(EventKind::allocate, 1000)};
  CHECK(served_since(snapshot) == Answers{true, std::nullopt, true});
}

TEST_CASE("what goes past the pool is no event: that it was served nobody knows; devices do not answer for each other") {
  Snapshot snapshot;
  snapshot.devices = {samples::empty_device(samples::kGiB), samples::empty_device(samples::kGiB)};
  snapshot.devices[1].ordinal = 1;
  snapshot.ooms = {refused(1000, 1, 0), refused(1000, 1, 0)};
  snapshot.ooms[0].evidence.is_outside_pool = true;
  snapshot.ooms[1].device = 1;
  for (DeviceSnapshot& device : snapshot.devices) device.timeline = {event(EventKind::oom, 1000, 1)};
  CHECK(served_since(snapshot) == Answers{std::nullopt, false});
  snapshot.devices[0].timeline.push_back(event(EventKind::allocate, 1000));
  CHECK(served_since(snapshot) == Answers{true, false});
}
