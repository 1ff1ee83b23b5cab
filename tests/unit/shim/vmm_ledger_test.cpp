// When physical memory that the program created itself is gone: with the last reference of its handle and the last mapping.
#include "shim/vmm_ledger.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

using namespace cupool::shim;
using Keys = std::vector<std::uint64_t>;

namespace {
/// The key of the memory that is gone with this release; 0: none.
std::uint64_t gone(VmmLedger& ledger, VmmLedger::Handle handle) {
  const VmmLedger::Released released = ledger.released(handle);
  return released.is_gone ? released.key : 0;
}
}  // namespace

TEST_CASE("memory that is released while unmapped is gone at once") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  CHECK(key != 0);
  CHECK(gone(ledger, 10) == key);
  CHECK(gone(ledger, 10) == 0);
}

TEST_CASE("memory that is released while mapped is gone with its last mapping") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  ledger.mapped(10, 0x1000, 0x100);
  ledger.mapped(10, 0x2000, 0x100);
  CHECK(gone(ledger, 10) == 0);
  CHECK(ledger.unmapped(0x1000, 0x100).empty());
  CHECK(ledger.unmapped(0x2000, 0x100) == Keys{key});
}

TEST_CASE("memory that is unmapped before its release is gone with the release") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  ledger.mapped(10, 0x1000, 0x100);
  CHECK(ledger.unmapped(0x1000, 0x100).empty());
  CHECK(gone(ledger, 10) == key);
}

TEST_CASE("every retained reference holds the memory") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  ledger.retained(10, 0);
  CHECK(gone(ledger, 10) == 0);
  CHECK(gone(ledger, 10) == key);
}

TEST_CASE("what was released while mapped has a handle again by its address") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  ledger.mapped(10, 0x1000, 0x100);
  CHECK(gone(ledger, 10) == 0);
  ledger.retained(11, 0x1080);
  CHECK(ledger.unmapped(0x1000, 0x100).empty());
  ledger.mapped(11, 0x5000, 0x100);
  CHECK(gone(ledger, 11) == 0);
  CHECK(ledger.unmapped(0x5000, 0x100) == Keys{key});
  ledger.retained(12, 0x5000);
  CHECK(gone(ledger, 12) == 0);
}

TEST_CASE("a handle by an address behind the mapping is not that memory's") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  ledger.mapped(10, 0x1000, 0x100);
  CHECK(gone(ledger, 10) == 0);
  ledger.retained(11, 0x1100);
  CHECK(ledger.unmapped(0x1000, 0x100) == Keys{key});
}

TEST_CASE("a release that the driver refuses leaves the memory held") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  const VmmLedger::Released released = ledger.released(10);
  CHECK(released.is_gone);
  ledger.not_released(10, released);
  CHECK(gone(ledger, 10) == key);
}

TEST_CASE("a handle whose value comes again names other memory") {
  VmmLedger ledger;
  const std::uint64_t first = ledger.created(10);
  ledger.mapped(10, 0x1000, 0x100);
  CHECK(gone(ledger, 10) == 0);
  const std::uint64_t second = ledger.created(10);
  CHECK(second != first);
  CHECK(ledger.unmapped(0x1000, 0x100) == Keys{first});
  CHECK(gone(ledger, 10) == second);
}

TEST_CASE("one unmap takes every mapping in its range and none outside") {
  VmmLedger ledger;
  const std::uint64_t a = ledger.created(1);
  const std::uint64_t b = ledger.created(2);
  const std::uint64_t c = ledger.created(3);
  ledger.mapped(1, 0x1000, 0x1000);
  ledger.mapped(2, 0x2000, 0x1000);
  ledger.mapped(3, 0x3000, 0x1000);
  for (const std::uint64_t handle : {1, 2, 3}) CHECK(gone(ledger, handle) == 0);
  CHECK(ledger.unmapped(0x1000, 0x2000) == Keys{a, b});
  CHECK(ledger.unmapped(0x3000, 0x1000) == Keys{c});
}

TEST_CASE("handles that the program did not create are not counted") {
  VmmLedger ledger;
  ledger.mapped(99, 0x1000, 0x1000);
  ledger.retained(99, 0);
  CHECK(gone(ledger, 99) == 0);
  CHECK(ledger.unmapped(0x1000, 0x1000).empty());
}

namespace {
constexpr std::uintptr_t kArray = 0x700;

CUcontext context_of(std::uintptr_t value) { return reinterpret_cast<CUcontext>(value); }
const void* array_at(std::uintptr_t value) { return reinterpret_cast<const void*>(value); }

/// A box of one array; handle 0 unmaps.
CUarrayMapInfo box(VmmLedger::Handle handle, unsigned x, unsigned width, unsigned layer = 0, std::uintptr_t array = kArray) {
  CUarrayMapInfo change{};
  change.resourceType = CU_RESOURCE_TYPE_ARRAY;
  change.resource.array = reinterpret_cast<CUarray>(array);
  change.subresource.sparseLevel = {0, layer, x, 0, 0, width, 64, 1};
  change.memOperationType = handle != 0 ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
  change.memHandle.memHandle = handle;
  return change;
}

/// The same of a mip tail.
CUarrayMapInfo tail(VmmLedger::Handle handle, unsigned long long offset, unsigned long long bytes, unsigned layer = 0) {
  CUarrayMapInfo change = box(handle, 0, 0);
  change.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
  change.subresource.miptail = {layer, offset, bytes};
  return change;
}

/// The keys of what is gone with the array.
Keys destroyed(VmmLedger& ledger, std::uintptr_t array) {
  VmmLedger::Arrays::node_type parts = ledger.take_array(array_at(array));
  Keys keys;
  while (const std::uint64_t key = ledger.next_gone(parts)) keys.push_back(key);
  return keys;
}
}  // namespace

TEST_CASE("memory that is mapped into an array lives until it is unmapped there or replaced") {
  VmmLedger ledger;
  const CUcontext context = context_of(0x10);
  const std::uint64_t first = ledger.created(10), second = ledger.created(11);
  ledger.array_made(array_at(kArray), false, context);
  CHECK(ledger.changed(box(10, 0, 64), context).empty());
  CHECK(ledger.changed(box(10, 64, 64), context).empty());
  CHECK(ledger.changed(box(11, 0, 64, 1), context).empty());
  CHECK(gone(ledger, 10) == 0);
  CHECK(gone(ledger, 11) == 0);
  CHECK(ledger.changed(box(0, 0, 32), context).empty());  // not all of it
  CHECK(ledger.changed(box(0, 0, 64), context).empty());
  CHECK(ledger.changed(box(0, 64, 64), context) == Keys{first});
  ledger.created(12);
  CHECK(ledger.changed(box(12, 0, 128, 1), context) == Keys{second});
}

TEST_CASE("a mip tail is no box, and each layer has its own") {
  VmmLedger ledger;
  const CUcontext context = context_of(0x10);
  const std::uint64_t first = ledger.created(10), second = ledger.created(11), third = ledger.created(12);
  ledger.changed(tail(10, 0x100, 0x100), context);
  ledger.changed(tail(11, 0x100, 0x100, 1), context);
  ledger.changed(box(12, 0x100, 0x100), context);
  for (const std::uint64_t handle : {10, 11, 12}) CHECK(gone(ledger, handle) == 0);
  CHECK(ledger.changed(tail(0, 0x101, 0xff), context).empty());  // not all of it
  CHECK(ledger.changed(tail(0, 0, 0x1ff), context).empty());
  CHECK(ledger.changed(tail(0, 0, 0x200), context) == Keys{first});
  CHECK(ledger.changed(box(0, 0, 0x200), context) == Keys{third});
  CHECK(ledger.changed(tail(0, 0x100, 0x100, 1), context) == Keys{second});
}

TEST_CASE("one unmap of many parts, and memory that is mapped again where it is") {
  VmmLedger ledger;
  const CUcontext context = context_of(0x10);
  const std::uint64_t first = ledger.created(10), second = ledger.created(11);
  ledger.array_made(array_at(kArray), false, context);
  ledger.changed(box(10, 0, 64), context);
  ledger.changed(box(11, 64, 64), context);
  CHECK(gone(ledger, 11) == 0);
  CHECK(ledger.changed(box(10, 0, 64), context).empty());
  CHECK(gone(ledger, 10) == 0);
  Keys keys = ledger.changed(box(0, 0, 128), context);
  std::sort(keys.begin(), keys.end());
  CHECK(keys == Keys{first, second});
}

TEST_CASE("memory in an array is gone with the array, or with its context") {
  VmmLedger ledger;
  const std::uint64_t first = ledger.created(10), second = ledger.created(11), third = ledger.created(12);
  ledger.array_made(array_at(kArray), false, context_of(0x10));
  ledger.array_made(array_at(kArray + 8), true, context_of(0x20));
  ledger.changed(box(10, 0, 64), context_of(0x10));
  ledger.changed(box(11, 0, 64, 0, kArray + 8), context_of(0x20));
  ledger.changed(box(12, 0, 64), context_of(0x10));  // in the place of the first
  CHECK(gone(ledger, 10) == first);
  CHECK(gone(ledger, 11) == 0);
  CHECK(gone(ledger, 12) == 0);
  VmmLedger::Arrays::node_type refused = ledger.take_array(array_at(kArray));
  ledger.not_destroyed(std::move(refused));
  CHECK(destroyed(ledger, kArray) == Keys{third});
  CHECK(destroyed(ledger, kArray).empty());
  ledger.context_ended(context_of(0x10));
  CHECK(ledger.next_gone() == 0);
  ledger.context_ended(context_of(0x20));
  CHECK(ledger.next_gone() == second);
  CHECK(ledger.next_gone() == 0);
}

TEST_CASE("an array that is mapped as a whole is unmapped whatever part is named, and one whose handle comes again has lost its memory") {
  VmmLedger ledger;
  const CUcontext context = context_of(0x10);
  const std::uint64_t first = ledger.created(10), second = ledger.created(11);
  ledger.array_made(array_at(kArray), true, context);
  ledger.changed(box(10, 7, 1, 3), context);
  CHECK(gone(ledger, 10) == 0);
  CHECK(ledger.changed(box(0, 0, 0), context) == Keys{first});
  ledger.changed(box(11, 0, 64), context);
  CHECK(gone(ledger, 11) == 0);
  ledger.array_made(array_at(kArray), false, context);
  CHECK(ledger.next_gone() == second);
}

TEST_CASE("of more parts than are kept apart the memory counts until the array goes") {
  VmmLedger ledger;
  const CUcontext context = context_of(0x10);
  const std::uint64_t first = ledger.created(10), second = ledger.created(11);
  for (unsigned i = 0; i < ArrayParts::kMost; ++i) ledger.changed(box(10, 64 * i, 64), context);
  for (unsigned i = 0; i < 10; ++i) ledger.changed(box(11, 64 * i, 64, 1), context);
  CHECK(gone(ledger, 10) == 0);
  CHECK(gone(ledger, 11) == 0);
  CHECK(ledger.changed(box(0, 0, 1 << 20), context) == Keys{first});
  CHECK(ledger.changed(box(0, 0, 1 << 20, 1), context).empty());
  CHECK(destroyed(ledger, kArray) == Keys{second});
}

TEST_CASE("memory beyond the parts that are kept apart is noted once, and parts that go make room for others") {
  ArrayParts parts;
  for (unsigned i = 0; i < ArrayParts::kMost; ++i) CHECK(parts.add(ArrayPart::of(box(10, 64 * i, 64)), 1));
  CHECK(parts.add(ArrayPart::of(box(10, 0, 64, 1)), 1));
  CHECK_FALSE(parts.add(ArrayPart::of(box(10, 64, 64, 1)), 1));
  CHECK(parts.add(ArrayPart::of(box(11, 64, 64, 1)), 2));
  CHECK(parts.mapped.size() == ArrayParts::kMost + 2);
  for (unsigned i = 0; i < 3; ++i) CHECK(parts.take_covered(ArrayPart::of(box(0, 64 * i, 64))) == 1);
  CHECK(parts.add(ArrayPart::of(box(10, 0, 64)), 1));
  CHECK(parts.take_covered(ArrayPart::of(box(0, 0, 64))) == 1);
}

TEST_CASE("a part covers another in every direction, on the same level and layer, or not at all") {
  CUarrayMapInfo change = box(10, 0, 0);
  change.subresource.sparseLevel = {1, 2, 10, 20, 30, 5, 6, 7};
  const ArrayPart part = ArrayPart::of(change);
  CHECK(part.begin == std::array<std::uint64_t, 3>{10, 20, 30});
  CHECK(part.end == std::array<std::uint64_t, 3>{15, 26, 37});
  CHECK(part.covers(part));
  for (std::size_t i = 0; i < 3; ++i) {
    ArrayPart later = part, shorter = part;
    ++later.begin[i];
    --shorter.end[i];
    CHECK(part.covers(later));
    CHECK_FALSE(later.covers(part));
    CHECK(part.covers(shorter));
    CHECK_FALSE(shorter.covers(part));
  }
  ++change.subresource.sparseLevel.level;
  CHECK_FALSE(part.covers(ArrayPart::of(change)));
  --change.subresource.sparseLevel.level;
  ++change.subresource.sparseLevel.layer;
  CHECK_FALSE(part.covers(ArrayPart::of(change)));
}

TEST_CASE("memory that is not counted, and arrays into which nothing is mapped, leave nothing behind") {
  VmmLedger ledger;
  const CUcontext context = context_of(0x10);
  CHECK(ledger.changed(box(99, 0, 64), context).empty());
  CHECK(ledger.changed(box(0, 0, 64), context).empty());
  CHECK(destroyed(ledger, kArray).empty());
}
