// ExtentArena: what one keeper uses lies in pages of its own, and nothing is lost to keepers that are idle.
#include <catch2/catch.hpp>

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "pool/heap/extent_arena.hpp"

using namespace cupool::heap;

namespace {
std::uintptr_t page_of(const Extent* extent) { return reinterpret_cast<std::uintptr_t>(extent) / 4096; }
}  // namespace

static_assert(offsetof(Extent, is_in_table) < 64, "a magazine's pair touches one cache line of the extent");

TEST_CASE("extent arena: keepers that take turns share no page, with each other or with anybody") {
  ExtentArena arena;
  std::set<std::uintptr_t> pages[4];
  for (int i = 0; i < 2000; ++i)
    for (std::uint8_t keeper = 0; keeper < 4; ++keeper) pages[keeper].insert(page_of(arena.take(keeper)));
  std::set<std::uintptr_t> all;
  std::size_t count = 0;
  for (const auto& own : pages) {
    all.insert(own.begin(), own.end());
    count += own.size();
  }
  CHECK(all.size() == count);
  CHECK(arena.in_use() == 8000);
  CHECK(arena.metadata_bytes() < 8000 * sizeof(Extent) * 5 / 4);
}

TEST_CASE("extent arena: what a keeper gives back is its own again") {
  ExtentArena arena;
  std::vector<Extent*> first;
  std::vector<Extent*> second;
  for (int i = 0; i < 200; ++i) {
    first.push_back(arena.take(1));
    second.push_back(arena.take(2));
  }
  const std::set<Extent*> of_first(first.begin(), first.end());
  for (int i = 0; i < 200; ++i) {
    arena.give_back(first[static_cast<std::size_t>(i)]);
    arena.give_back(second[static_cast<std::size_t>(i)]);
  }
  for (int i = 0; i < 200; ++i) CHECK(of_first.count(arena.take(1)) == 1);
  for (int i = 0; i < 200; ++i) CHECK(of_first.count(arena.take(2)) == 0);
  CHECK(arena.take(1)->keeper == 1);
}

TEST_CASE("extent arena: many spare ones are anybody's") {
  ExtentArena arena;
  std::vector<Extent*> many;
  for (int i = 0; i < 100'000; ++i) many.push_back(arena.take(1));
  const std::size_t bytes = arena.metadata_bytes();
  for (Extent* extent : many) arena.give_back(extent);
  for (std::uint8_t keeper = 2; keeper < 5; ++keeper)
    for (int i = 0; i < 30'000; ++i) arena.take(keeper);
  CHECK(arena.metadata_bytes() < bytes + bytes / 8);
  CHECK(arena.in_use() == 90'000);
}

TEST_CASE("extent arena: empty, it has nothing and can be used again") {
  ExtentArena arena;
  Extent* own = arena.take(3);
  Extent* shared = arena.take();
  arena.give_back(own);
  arena.release_if_empty();
  CHECK(arena.metadata_bytes() != 0);
  arena.give_back(shared);
  arena.release_if_empty();
  CHECK(arena.in_use() == 0);
  for (int i = 0; i < 1000; ++i) arena.take(static_cast<std::uint8_t>(i % 33));
  CHECK(arena.in_use() == 1000);
}
