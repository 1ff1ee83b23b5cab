// Which memory pools are served: what a thread remembers of a pool holds exactly as long as the pool does.
#include "shim/mempool_book.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <optional>
#include <set>

using cupool::DriverApi;
using cupool::shim::Mempool;
using cupool::shim::MempoolBook;

namespace {

CUmemoryPool pool(std::uintptr_t number) { return reinterpret_cast<CUmemoryPool>(number * 0x40); }

/// Two devices, whose default pools are pool(1) and pool(2) and, once `g_renewed`, pool(11) and pool(12).
bool g_renewed = false;
int g_driver_calls = 0;

CUresult count_devices(int* count) {
  ++g_driver_calls;
  *count = 2;
  return CUDA_SUCCESS;
}
CUresult default_pool(CUmemoryPool* out, CUdevice device) {
  ++g_driver_calls;
  *out = pool(static_cast<std::uintptr_t>(device) + (g_renewed ? 11 : 1));
  return CUDA_SUCCESS;
}

DriverApi driver() {
  g_renewed = false;
  g_driver_calls = 0;
  DriverApi api;
  api.cuDeviceGetCount = &count_devices;
  api.cuDeviceGetDefaultMemPool = &default_pool;
  api.cuDeviceGetMemPool = &default_pool;
  return api;
}

CUmemPoolProps plain_on(int device) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

bool none_in_use(std::uint8_t) { return true; }

bool is(const std::optional<Mempool>& found, int device, std::uint8_t index) { return found && found->device == device && found->index == index; }

/// -2: nobody knows the pool.
int device_of(MempoolBook& book, CUmemoryPool handle) {
  const std::optional<MempoolBook::Made> made = book.facts_of(handle);
  return made ? made->device : -2;
}

}  // namespace

TEST_CASE("a default pool is met at its first use, and then known without the driver") {
  const DriverApi api = driver();
  MempoolBook book(api);
  CHECK(is(book.find(pool(2)), 1, MempoolBook::kDefault));
  const int calls = g_driver_calls;
  CHECK(is(book.find(pool(2)), 1, MempoolBook::kDefault));
  CHECK(is(book.find(pool(1)), 0, MempoolBook::kDefault));
  CHECK(g_driver_calls == calls);
  CHECK_FALSE(book.find(pool(3)));
  CHECK_FALSE(book.find(nullptr));
}

TEST_CASE("a pool that was destroyed is not remembered, and its handle may be another pool's") {
  const DriverApi api = driver();
  MempoolBook book(api);
  REQUIRE(book.created(pool(5), plain_on(0), none_in_use));
  CHECK(is(book.find(pool(5)), 0, 2));
  CHECK(is(book.find(pool(5)), 0, 2));
  book.destroyed(pool(5), book.known(pool(5)));
  CHECK_FALSE(book.find(pool(5)));
  REQUIRE(book.created(pool(5), plain_on(1), none_in_use));
  CHECK(is(book.find(pool(5)), 1, 2));
}

TEST_CASE("pools of a device have an index each, as many as there are, and an index with blocks is not given again") {
  const DriverApi api = driver();
  MempoolBook book(api);
  const unsigned count = cupool::PoolSet::kMempools - 2u;  // without the driver's and the default one
  std::set<int> given;
  for (unsigned i = 0; i < count; ++i) {
    REQUIRE(book.created(pool(20 + i), plain_on(0), none_in_use));
    given.insert(book.find(pool(20 + i))->index);
  }
  CHECK(given.size() == count);
  CHECK(*given.begin() > MempoolBook::kDefault);
  CHECK_FALSE(book.created(pool(20 + count), plain_on(0), none_in_use));
  CHECK(book.created(pool(21 + count), plain_on(1), none_in_use));
  const Mempool gone = *book.find(pool(20));
  book.destroyed(pool(20), gone);
  CHECK_FALSE(book.created(pool(20), plain_on(0), [&](std::uint8_t index) { return index != gone.index; }));
  CHECK(book.created(pool(20), plain_on(0), none_in_use));
  CHECK(is(book.find(pool(20)), 0, gone.index));
}

TEST_CASE("blocks of a pool that is gone name it until another one has its index") {
  const DriverApi api = driver();
  MempoolBook book(api);
  for (std::uintptr_t i : {5, 6}) REQUIRE(book.created(pool(i), plain_on(0), none_in_use));
  REQUIRE(book.created(pool(7), plain_on(1), none_in_use));
  const Mempool first = *book.find(pool(5)), second = *book.find(pool(6)), elsewhere = *book.find(pool(7));
  for (std::uintptr_t i : {5, 6, 7}) book.destroyed(pool(i), book.known(pool(i)));
  CHECK(book.handle(first) == pool(5));
  REQUIRE(book.created(pool(8), plain_on(0), none_in_use));
  CHECK(is(book.find(pool(8)), 0, first.index));
  book.destroyed(pool(8), book.known(pool(8)));
  CHECK(book.handle(first) == pool(8));
  CHECK(book.handle(second) == pool(6));
  CHECK(book.handle(elsewhere) == pool(7));
}

TEST_CASE("a pool whose handle comes again before the end of the one before it is booked is the new one") {
  const DriverApi api = driver();
  MempoolBook book(api);
  REQUIRE(book.created(pool(5), plain_on(0), none_in_use));
  const Mempool before = *book.find(pool(5));
  REQUIRE(book.created(pool(5), plain_on(1), none_in_use));
  CHECK(is(book.find(pool(5)), 1, before.index));
  book.destroyed(pool(5), before);
  CHECK(is(book.find(pool(5)), 1, before.index));
  CHECK(book.handle(before) == pool(5));
}

TEST_CASE("a pool with a size or a use of its own, or of no device, stays the driver's") {
  const DriverApi api = driver();
  MempoolBook book(api);
  CUmemPoolProps properties = plain_on(0);
  properties.maxSize = 1;
  CHECK_FALSE(book.created(pool(6), properties, none_in_use));
  properties = plain_on(0);
  properties.usage = 1;
  CHECK_FALSE(book.created(pool(6), properties, none_in_use));
  properties = plain_on(0);
  properties.reserved[sizeof properties.reserved - 1] = 1;
  CHECK_FALSE(book.created(pool(6), properties, none_in_use));
  for (const int no_device : {-1, int{cupool::observe::kMaxDevices}}) CHECK_FALSE(book.created(pool(6), plain_on(no_device), none_in_use));
}

TEST_CASE("where the current pool is destroyed the device's default one is current again") {
  const DriverApi api = driver();
  MempoolBook book(api);
  REQUIRE(book.created(pool(5), plain_on(0), none_in_use));
  book.set_current(0, pool(5));
  CHECK(book.current(0) == 2);
  book.destroyed(pool(5), book.known(pool(5)));
  CHECK(book.current(0) == MempoolBook::kDefault);
  book.set_current(0, pool(6));  // one of the driver's
  CHECK(book.current(0) == 0);
  book.destroyed(pool(6), book.known(pool(6)));
  CHECK(book.current(0) == MempoolBook::kDefault);
}

TEST_CASE("a pool that was the driver's is found when it is made again as one that is served") {
  const DriverApi api = driver();
  MempoolBook book(api);
  CUmemPoolProps shared = plain_on(0);
  shared.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CHECK_FALSE(book.created(pool(6), shared, none_in_use));
  CHECK_FALSE(book.find(pool(6)));
  book.destroyed(pool(6), book.known(pool(6)));
  REQUIRE(book.created(pool(6), plain_on(0), none_in_use));
  CHECK(is(book.find(pool(6)), 0, 2));
}

TEST_CASE("after the reset of a device its old default pool is forgotten with the first use of the new one") {
  const DriverApi api = driver();
  MempoolBook book(api);
  CHECK(is(book.find(pool(1)), 0, MempoolBook::kDefault));
  book.device_reset(0);
  g_renewed = true;
  CHECK(book.current(0) == MempoolBook::kDefault);
  CHECK(is(book.find(pool(11)), 0, MempoolBook::kDefault));
  CHECK_FALSE(book.find(pool(1)));
}

TEST_CASE("a pool of the host is known as soon as the driver has told of it, and no device's") {
  using cupool::shim::MempoolMemory;
  const DriverApi api = driver();
  MempoolBook book(api);
  CHECK_FALSE(book.facts_of(pool(8)));
  book.given(pool(8), {CU_MEM_LOCATION_TYPE_HOST, 0}, CU_MEM_ALLOCATION_TYPE_PINNED);
  book.given(pool(9), {CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ALLOCATION_TYPE_MANAGED);
  book.given(pool(2), {CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ALLOCATION_TYPE_PINNED);
  REQUIRE(book.facts_of(pool(8)));
  CHECK(book.facts_of(pool(8))->memory == MempoolMemory::host);
  CHECK(device_of(book, pool(8)) == MempoolBook::kNoDevice);
  CHECK(book.facts_of(pool(9))->memory == MempoolMemory::managed);
  CHECK(device_of(book, pool(9)) == MempoolBook::kNoDevice);
  CHECK(is(book.find(pool(2)), 1, MempoolBook::kDefault));
  CHECK(device_of(book, pool(2)) == 1);
}

TEST_CASE("a pool of a device's locality domain gives that device's memory, and is not served") {
  const DriverApi api = driver();
  MempoolBook book(api);
  const CUmemLocation domain{static_cast<CUmemLocationType>(6), 1 + 256 * 3};  // device 1, domain 3
  book.given(pool(8), domain, CU_MEM_ALLOCATION_TYPE_PINNED);
  CHECK(device_of(book, pool(8)) == 1);
  CUmemPoolProps properties = plain_on(0);
  properties.location = domain;
  book.made(pool(9), properties);
  CHECK(device_of(book, pool(9)) == 1);
  CHECK_FALSE(book.created(pool(9), properties, none_in_use));
}

TEST_CASE("what the program has made of a pool is not forgotten when the driver tells of it as the current one") {
  const DriverApi api = driver();
  MempoolBook book(api);
  CUmemPoolProps sized = plain_on(0);
  sized.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  sized.maxSize = 5;
  book.made(pool(8), sized);
  book.given(pool(8), sized.location, CU_MEM_ALLOCATION_TYPE_PINNED);
  REQUIRE(book.facts_of(pool(8)));
  CHECK(book.facts_of(pool(8))->max_bytes == 5);
}

TEST_CASE("a device's new default pool is no pool of the host that had its handle") {
  const DriverApi api = driver();
  MempoolBook book(api);
  book.given(pool(11), {CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ALLOCATION_TYPE_MANAGED);
  CHECK(is(book.find(pool(1)), 0, MempoolBook::kDefault));
  book.device_reset(0);
  g_renewed = true;
  CHECK(book.current(0) == MempoolBook::kDefault);
  CHECK(device_of(book, pool(11)) == 0);
}

TEST_CASE("what is remembered of one book is not another's") {
  const DriverApi api = driver();
  std::optional<MempoolBook> book(std::in_place, api);
  REQUIRE(book->created(pool(7), plain_on(0), none_in_use));
  CHECK(is(book->find(pool(7)), 0, 2));
  book.emplace(api);
  REQUIRE(book->created(pool(10), plain_on(0), none_in_use));  // as many changes as the other has seen
  CHECK_FALSE(book->find(pool(7)));
}

TEST_CASE("more pools than a thread remembers are all found") {
  const DriverApi api = driver();
  MempoolBook book(api);
  for (std::uintptr_t number = 20; number < 60; ++number) REQUIRE(book.created(pool(number), plain_on(0), none_in_use));
  for (int round = 0; round < 2; ++round)
    for (std::uintptr_t number = 20; number < 60; ++number) CHECK(is(book.find(pool(number)), 0, static_cast<std::uint8_t>(number - 18)));
}

TEST_CASE("a pool that the thread knows is found while the book is locked") {
  const DriverApi api = driver();
  MempoolBook book(api);
  REQUIRE(book.created(pool(8), plain_on(0), none_in_use));
  REQUIRE(is(book.find(pool(8)), 0, 2));
  bool found = false;
  const auto look_inside = [&](std::uint8_t) {  // asked under the lock: this would never return if find() took it
    found = is(book.find(pool(8)), 0, 2);
    return true;
  };
  REQUIRE(book.created(pool(9), plain_on(0), look_inside));
  CHECK(found);
}

TEST_CASE("a pool that is made with the handle of one whose end is being booked stays") {
  const DriverApi api = driver();
  MempoolBook book(api);
  REQUIRE(book.created(pool(5), plain_on(0), none_in_use));
  const std::optional<Mempool> was = book.known(pool(5));
  CHECK(is(was, 0, 2));
  REQUIRE(book.created(pool(5), plain_on(0), none_in_use));  // the driver has destroyed the first, and another thread made this one
  book.set_current(0, pool(5));
  book.destroyed(pool(5), was);
  CHECK(is(book.find(pool(5)), 0, 3));
  CHECK(book.current(0) == 3);
  CHECK(book.handle({0, 2}) == pool(5));  // blocks of the first may live on
}

TEST_CASE("whose memory a pool of the program's is: a device's only where it is that device's own") {
  const DriverApi api = driver();
  MempoolBook book(api);
  book.made(pool(3), plain_on(1));
  CHECK(device_of(book, pool(3)) == 1);
  CUmemPoolProps of_host = plain_on(0);
  of_host.location.type = CU_MEM_LOCATION_TYPE_HOST;
  book.made(pool(4), of_host);
  CHECK(device_of(book, pool(4)) == MempoolBook::kNoDevice);
  CUmemPoolProps managed = plain_on(1);
  managed.allocType = static_cast<CUmemAllocationType>(2);  // CU_MEM_ALLOCATION_TYPE_MANAGED, since CUDA 13.0
  book.made(pool(5), managed);
  CHECK(device_of(book, pool(5)) == MempoolBook::kNoDevice);
}
