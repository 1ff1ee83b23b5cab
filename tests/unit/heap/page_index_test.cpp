// PageIndex: lookups at the edges of pages, of dense tables and of the bitmap's words.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <fstream>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/page_index.hpp"

using namespace cupool;
using namespace cupool::heap;

namespace {

constexpr std::uint64_t kBase = (std::uint64_t{5} << 40) + 512;  // regions need no page alignment

/// Extents back to back from kBase, with the sizes given.
struct Row {
  explicit Row(const std::vector<std::uint64_t>& sizes) : extents(sizes.size()) {
    std::uint64_t address = kBase;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      extents[i].address = address;
      extents[i].bytes = sizes[i];
      if (i > 0) extents[i].previous = &extents[i - 1];
      if (i > 0) extents[i - 1].next = &extents[i];
      address += sizes[i];
    }
    bytes = address - kBase;
  }
  std::vector<Extent> extents;
  std::uint64_t bytes = 0;
};

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  REQUIRE((statm >> size >> resident));
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void check_all(const PageIndex& index, const Row& row) {
  REQUIRE(index.check() == "");
  for (const Extent& extent : row.extents) {
    REQUIRE(index.find(extent.address) == &extent);
    REQUIRE(index.find_containing(extent.address) == &extent);
    REQUIRE(index.find_containing(extent.address + extent.bytes - 1) == &extent);
    REQUIRE(index.find(extent.address + 1) == nullptr);
    if (extent.bytes > 512) REQUIRE(index.find(extent.address + 512) == nullptr);
  }
}

}  // namespace

TEST_CASE("extents are found whether they are many to a page or many pages long") {
  std::vector<std::uint64_t> sizes;
  for (int i = 0; i < 300; ++i) sizes.push_back(512);
  sizes.push_back(5 * kMiB);
  for (int i = 0; i < 9; ++i) sizes.push_back(7168);
  sizes.push_back(700 * kMiB);  // spans words of the second bitmap level
  sizes.push_back(512);
  sizes.push_back(40 * kGiB);  // and of the third
  sizes.push_back(64 * kKiB);
  Row row(sizes);
  PageIndex index(kBase, row.bytes);
  for (Extent& extent : row.extents) index.insert(&extent);
  check_all(index, row);
}

TEST_CASE("a region of several terabytes is searched across top-level words") {
  Row row({512, 3072 * kGiB, 512});
  PageIndex index(kBase, row.bytes);
  for (Extent& extent : row.extents) index.insert(&extent);
  check_all(index, row);
  CHECK(index.find_containing(kBase + 2500 * kGiB) == &row.extents[1]);
}

TEST_CASE("a dense page becomes sparse again when its extents are joined, and gives its table back") {
  Row row(std::vector<std::uint64_t>(128, 512));
  PageIndex index(kBase, row.bytes);
  const std::size_t empty_bytes = index.metadata_bytes();
  for (Extent& extent : row.extents) index.insert(&extent);
  CHECK(index.metadata_bytes() > empty_bytes);
  check_all(index, row);
  for (std::size_t i = 127; i > 0; --i) {
    index.remove(&row.extents[i]);
    row.extents[i - 1].bytes += row.extents[i].bytes;
    row.extents[i - 1].next = nullptr;
    row.extents.pop_back();
    check_all(index, row);
  }
  CHECK(index.metadata_bytes() == empty_bytes);
}

TEST_CASE("a replaced extent is found in the old one's place, in sparse and dense pages") {
  for (const std::size_t count : {2, 100}) {
    Row row(std::vector<std::uint64_t>(count, 512));
    PageIndex index(kBase, row.bytes);
    for (Extent& extent : row.extents) index.insert(&extent);
    Row copy(std::vector<std::uint64_t>(count, 512));
    for (std::size_t i = 0; i < count; ++i) index.replace(&row.extents[i], &copy.extents[i]);
    check_all(index, copy);
  }
}

TEST_CASE("an index costs 9.2 bytes per page of 64 KiB") {
  const PageIndex index(kBase, 64 * kGiB);
  CHECK(index.metadata_bytes() < 64 * kGiB / 65536 * 92 / 10);
}

TEST_CASE("an index of a long region touches no memory before it is used, however many there were before") {
  const std::uint64_t before = resident_bytes();
  for (int i = 0; i < 3; ++i) const PageIndex passing(kBase, 128 * kGiB);
  const PageIndex index(kBase, 128 * kGiB);
  CHECK(index.metadata_bytes() > 16 * kMiB);
  CHECK(resident_bytes() < before + 4 * kMiB);
}

TEST_CASE("what tells of addresses where nothing begins any more goes back to the system, and comes again") {
  Row row({16 * kGiB, 512});
  PageIndex index(kBase, row.bytes);
  for (Extent& extent : row.extents) index.insert(&extent);
  std::vector<Extent> small(16 * kGiB / (256 * kKiB) - 1);
  const auto enter_all = [&] {
    for (std::size_t i = 0; i < small.size(); ++i) {
      small[i] = Extent{};
      small[i].address = kBase + (i + 1) * 256 * kKiB;
      small[i].bytes = 256 * kKiB;
      small[i].previous = i > 0 ? &small[i - 1] : &row.extents[0];
      small[i].next = &row.extents[1];
      index.insert(&small[i]);
    }
  };
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t before = resident_bytes();
    enter_all();
    CHECK(index.find(small[1000].address) == &small[1000]);
    CHECK(resident_bytes() >= before + 2 * kMiB);
    for (const Extent& extent : small) index.remove(&extent);
    index.give_back(kBase, kBase + 16 * kGiB);
    if (round > 0) CHECK(resident_bytes() < before + kMiB);  // a sanitizer's own memory stays
    check_all(index, row);
  }
}
