// Magazines and streams: what a hit keeps true that asks nobody. A block has the size that was asked for, little is kept where little is to spare, and
// the most that ever lived is known.
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/device/churn.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::size_t kSmall_bytes = 1024;  ///< has another place than 64 MiB

/// A pair of an allocation and a free: was the device asked for the block?
bool asks_device(StreamRig& rig, CUstream stream, std::size_t bytes) {
  const std::uint64_t told = now(rig.counters().allocations);
  rig.free_on(rig.on(stream, bytes), stream);
  return now(rig.counters().allocations) != told;
}

/// A stream with pairs of a small size and of this large one, which the thread keeps by now. No miss closes the magazine, and no pair is a new peak.
CUstream warm_stream(StreamRig& rig, std::size_t bytes) {
  const CUdeviceptr large = rig.allocate(4 * bytes);
  rig.free(rig.allocate(kSmall_bytes));
  rig.free(large);
  const CUstream stream = new_stream();
  for (const std::size_t size : {kSmall_bytes, bytes})
    for (int i = 0; i < 20; ++i) asks_device(rig, stream, size);
  const CUdeviceptr both = rig.on(stream, bytes);
  asks_device(rig, stream, kSmall_bytes);
  rig.free_on(both, stream);
  REQUIRE_FALSE(asks_device(rig, stream, bytes));
  return stream;
}

}  // namespace

TEST_CASE("stream magazines: a small block is never handed out for another size that has the same place") {
  StreamRig rig(device_of("4GiB"));
  rig.free(rig.allocate(256 * kMiB));  // no miss closes the magazine
  const std::size_t bytes = 8 * kKiB;
  device::StreamRacks racks;
  std::size_t other_bytes = bytes + 512;
  while (&racks.sizes.at(other_bytes) != &racks.sizes.at(bytes)) other_bytes += 512;
  const CUstream stream = new_stream();
  kept_blocks(rig, stream, other_bytes, 1);
  const CUdeviceptr other = rig.on(stream, other_bytes);  // leaves its place empty
  kept_blocks(rig, stream, bytes, 3);
  rig.free_on(other, stream);
  for (int i = 0; i < 3; ++i) CHECK(rig.on(stream, bytes) != other);
}

TEST_CASE("stream magazines: a thread keeps no more for its streams than a part of what was never needed") {
  StreamRig rig(limited_to("256MiB"));
  rig.free(rig.allocate(64 * kMiB));  // no miss closes the magazine
  const CUstream stream = new_stream();
  const std::size_t bytes = 32 * kKiB;
  kept_blocks(rig, stream, bytes, 400);
  std::vector<CUdeviceptr> blocks(400);
  std::uint64_t kept = 0;
  for (CUdeviceptr& block : blocks) {
    const std::uint64_t told = now(rig.counters().allocations);
    block = rig.on(stream, bytes);
    kept += now(rig.counters().allocations) == told ? 1 : 0;
  }
  CHECK(kept >= 100);
  CHECK(kept * bytes <= 256 * kMiB / device::Magazine::kKeptShare);
  for (const CUdeviceptr block : blocks) rig.free_on(block, stream);
}

TEST_CASE("stream magazines: what lives at most is known also where it came and went without asking the device") {
  StreamRig rig(device_of("4GiB"));
  const CUstream stream = new_stream();
  const std::size_t bytes = 4096;
  std::vector<CUdeviceptr> blocks = kept_blocks(rig, stream, bytes, 10);
  const std::size_t other_bytes = GENERATE(std::size_t{4096}, std::size_t{512});
  std::vector<CUdeviceptr> others;
  for (int i = 0; i < 5; ++i) others.push_back(rig.allocate(other_bytes));
  REQUIRE(peak(rig.counters().live_bytes) == 10 * bytes);
  for (CUdeviceptr& block : blocks) block = rig.on(stream, bytes);
  for (const CUdeviceptr block : blocks) rig.free_on(block, stream);
  CHECK(peak(rig.counters().live_bytes) == 10 * bytes + 5 * other_bytes);
  CHECK(peak(rig.counters().requested_bytes) == 10 * bytes + 5 * other_bytes);
  CHECK(peak(rig.counters().live_blocks) == 15);
}

TEST_CASE("stream magazines: a large block that lives for long and is wanted again as soon as it was freed stays with its thread") {
  StreamRig rig(device_of("80GiB"));
  const std::size_t bytes = 64 * kMiB;
  const CUstream stream = warm_stream(rig, bytes);
  const CUdeviceptr block = rig.on(stream, bytes);
  for (std::uint64_t i = 0; i < 2 * device::Magazine::kSoon; ++i) REQUIRE_FALSE(asks_device(rig, stream, kSmall_bytes));
  rig.free_on(block, stream);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(asks_device(rig, stream, bytes));
}

TEST_CASE("stream magazines: a large block that is wanted again late goes back to everybody at its next free") {
  StreamRig rig(device_of("80GiB"));
  const std::size_t bytes = 64 * kMiB;
  const CUstream stream = warm_stream(rig, bytes);
  for (std::uint64_t i = 0; i < 2 * device::Magazine::kSoon; ++i) REQUIRE_FALSE(asks_device(rig, stream, kSmall_bytes));
  const CUdeviceptr block = rig.on(stream, bytes);
  const std::uint64_t told = now(rig.counters().frees);
  rig.free_on(block, stream);
  CHECK(now(rig.counters().frees) > told);
}
