// What magazines stand on: the lock that its owner takes with plain stores, and the table that is read without one.
#include "pool/device/owner_lock.hpp"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "pool/device/block_table.hpp"

using namespace cupool;

TEST_CASE("owner lock: who is inside is not inside twice, and others wait until it is out") {
  device::OwnerFences fences;
  for (const bool is_prepared : {false, true}) {
    if (is_prepared) fences.prepare();
    device::OwnerLock lock;
    REQUIRE(lock.lock_by_owner(fences));
    CHECK_FALSE(lock.lock_by_owner(fences));  // a signal handler on the same thread
    std::atomic<bool> is_out{false};
    std::atomic<bool> was_out{false};
    lock.begin();
    std::thread other([&] {
      fences.fence_all();
      lock.wait();
      was_out.store(is_out.load());
      lock.end();
    });
    is_out.store(true);
    lock.unlock_by_owner();
    other.join();
    CHECK(was_out.load());
    CHECK(lock.lock_by_owner(fences));
    lock.unlock_by_owner();
    lock.begin();
    CHECK_FALSE(lock.lock_by_owner(fences));
    lock.end();
  }
}

TEST_CASE("owner lock: two threads count with plain stores, and no count is lost") {
  device::OwnerFences fences;
  fences.prepare();
  device::OwnerLock lock;
  std::uint64_t count = 0;
  std::uint64_t by_owner = 0;
  std::atomic<bool> stop{false};
  std::thread owner([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      if (!lock.lock_by_owner(fences)) continue;
      ++count;
      ++by_owner;
      lock.unlock_by_owner();
    }
  });
  std::uint64_t by_other = 0;
  for (int i = 0; i < 20'000; ++i) {
    lock.begin();
    fences.fence_all();
    lock.wait();
    ++count;
    ++by_other;
    lock.end();
  }
  stop.store(true);
  owner.join();
  CHECK(count == by_owner + by_other);
}

TEST_CASE("block table: entries come and go; what is not entered is not found") {
  device::BlockTable table;
  std::vector<heap::Extent> extents(1000);
  std::mt19937_64 random(3);
  for (std::size_t i = 0; i < extents.size(); ++i) extents[i].address = (i % 7 == 0 ? 0x7f00'0000'0000 : 0x10'0000'0000) + 512 * (i * 3 + 1);
  for (int round = 0; round < 3; ++round) {
    for (heap::Extent& extent : extents) REQUIRE(table.insert(&extent));
    CHECK(table.size() == extents.size());
    for (heap::Extent& extent : extents) {
      CHECK(table.find(extent.address) == &extent);
      CHECK(table.find(extent.address + 512) == nullptr);
      CHECK(table.find(extent.address + 8) == nullptr);
    }
    for (const heap::Extent& extent : extents) table.remove(extent);
    for (const heap::Extent& extent : extents) CHECK(table.find(extent.address) == nullptr);
    CHECK(table.size() == 0);
  }
  heap::Extent beyond;
  beyond.address = std::uint64_t{1} << 52;
  CHECK_FALSE(table.insert(&beyond));
  CHECK(table.find(beyond.address) == nullptr);
  CHECK(table.find(~std::uint64_t{511}) == nullptr);
}

TEST_CASE("block table: large blocks have lines of their own; one that is full refuses") {
  device::BlockTable table;
  std::vector<heap::Extent> extents(20'000);
  for (std::size_t i = 0; i < extents.size(); ++i) {
    extents[i].address = 0x10'0000'0000 + i * 3 * kMiB;
    extents[i].bytes = kMiB;
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<bool> entered(extents.size());
    for (std::size_t i = 0; i < extents.size(); ++i) entered[i] = table.insert(&extents[i]);
    const auto count = static_cast<std::size_t>(std::count(entered.begin(), entered.end(), true));
    CHECK(table.size() == count);
    CHECK(count > 10'000);
    CHECK(count <= 16'384);  // so many places there are
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < extents.size(); ++i) wrong += table.find(extents[i].address) != (entered[i] ? &extents[i] : nullptr);
    CHECK(wrong == 0);
    for (std::size_t i = 0; i < extents.size(); ++i)
      if (entered[i]) table.remove(extents[i]);
    for (const heap::Extent& extent : extents) CHECK(table.find(extent.address) == nullptr);
    CHECK(table.size() == 0);
  }
}
