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

TEST_CASE("block table: a large block stands alone, or beside what else begins in its 64 KiB, whichever comes and goes first") {
  device::BlockTable table;
  constexpr std::uint64_t kBase = 0x10'0000'0000;
  std::vector<heap::Extent> extents(4);
  for (std::size_t i = 0; i < extents.size(); ++i) {
    extents[i].address = kBase + i * 20 * kKiB;
    extents[i].bytes = i % 2 == 0 ? kMiB : 512;
  }
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    for (const std::size_t i : order) {
      REQUIRE(table.insert(&extents[i]));
      CHECK(table.find(extents[i].address) == &extents[i]);
    }
    CHECK(table.size() == 4);
    for (const heap::Extent& extent : extents) {
      CHECK(table.find(extent.address) == &extent);
      CHECK(table.find(extent.address + 512) == nullptr);
    }
    for (const std::size_t i : order) {
      table.remove(extents[i]);
      for (std::size_t k = 0; k < extents.size(); ++k) {
        const bool is_gone = std::find(order.begin(), order.end(), k) <= std::find(order.begin(), order.end(), i);
        CHECK(table.find(extents[k].address) == (is_gone ? nullptr : &extents[k]));
      }
    }
    CHECK(table.size() == 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("block table: there is room for any number of large blocks") {
  device::BlockTable table;
  std::vector<heap::Extent> extents(20'000);
  for (std::size_t i = 0; i < extents.size(); ++i) {
    extents[i].address = 0x10'0000'0000 + i * 3 * kMiB + i % 128 * 512;
    extents[i].bytes = kMiB;
    REQUIRE(table.insert(&extents[i]));
  }
  std::size_t wrong = 0;
  for (heap::Extent& extent : extents) wrong += table.find(extent.address) != &extent || table.find(extent.address ^ 512) != nullptr ? 1 : 0;
  CHECK(wrong == 0);
}
