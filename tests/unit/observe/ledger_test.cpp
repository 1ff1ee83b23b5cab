// The ledger sums to the device's total, whatever it is told.
#include <catch2/catch.hpp>

#include <numeric>
#include <optional>
#include <string>

#include "pool/observe/ledger.hpp"
#include "samples.hpp"

using namespace cupool::observe;
using samples::add_region;
using samples::empty_device;
using samples::kGiB;
using samples::kMiB;

namespace {

std::uint64_t sum_of(const Ledger& ledger) {
  return std::accumulate(ledger.parts.begin(), ledger.parts.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const LedgerPart& p) { return sum + p.bytes; });
}

std::optional<std::uint64_t> part(const Ledger& ledger, const std::string& name) {
  for (const LedgerPart& p : ledger.parts) {
    if (name == p.name) return p.bytes;
  }
  return std::nullopt;
}

/// 1 MiB live, 2 deferred, 3 free beside them, 4 free alone, on 1 GiB.
DeviceSnapshot mixed_device() {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', kMiB}, {'d', 2 * kMiB}, {'f', 3 * kMiB}});
  add_region(device, {{'f', 4 * kMiB}});
  samples::settle(device);
  return device;
}

}  // namespace

TEST_CASE("each part of the pool has its own place in the ledger") {
  DeviceSnapshot device = mixed_device();
  device.now.reserved_bytes += 5 * kMiB;
  device.driver_free_bytes = kGiB - 100 * kMiB;
  device.outside = {10 * kMiB, 11 * kMiB, 13 * kMiB, 999 * kGiB};
  const Ledger ledger = ledger_of(device);
  CHECK(part(ledger, "live") == kMiB - 1);
  CHECK(part(ledger, "rounding") == 1);
  CHECK(part(ledger, "deferred") == 2 * kMiB);
  CHECK(part(ledger, "free_pinned") == 3 * kMiB);
  CHECK(part(ledger, "free_releasable") == 4 * kMiB);
  CHECK(part(ledger, "metadata") == 5 * kMiB);
  CHECK(part(ledger, "outside_arrays") == 10 * kMiB);
  CHECK(part(ledger, "outside_program_vmm") == 11 * kMiB);
  CHECK(part(ledger, "outside_managed") == 13 * kMiB);
  CHECK(part(ledger, "driver_free") == kGiB - 100 * kMiB);
  CHECK(part(ledger, "unattributed") == 51 * kMiB);
  CHECK(part(ledger, "other_processes") == std::nullopt);
  CHECK(sum_of(ledger) == kGiB);
  CHECK_FALSE(ledger.clamped);
  CHECK_FALSE(ledger.driver_free_stale);
}

TEST_CASE("an unknown is absent, not zero") {
  DeviceSnapshot device = mixed_device();
  device.driver_free_bytes = device.driver_free_unix_ns = 0;
  CHECK(part(ledger_of(device), "driver_free") == std::nullopt);
  CHECK_FALSE(ledger_of(device).driver_free_known);
  CHECK(part(ledger_of(device), "unattributed") == 0);  // nobody knows that it is in use
  CHECK(part(ledger_of(device), "unknown") == kGiB - 10 * kMiB);
  CHECK(sum_of(ledger_of(device)) == kGiB);
  device.driver_free_unix_ns = 1;
  CHECK(part(ledger_of(device), "driver_free") == 0);
  CHECK(part(ledger_of(device), "unknown") == std::nullopt);
  device.other_process_bytes = 0;
  CHECK(part(ledger_of(device), "other_processes") == 0);
  CHECK(sum_of(ledger_of(device)) == kGiB);
}

TEST_CASE("a sample of the driver's free bytes from before the pool grew is cut to what is left, and said") {
  DeviceSnapshot device = mixed_device();
  device.driver_free_bytes = kGiB;
  Ledger ledger = ledger_of(device);
  CHECK(ledger.driver_free_stale);
  CHECK_FALSE(ledger.clamped);
  CHECK(part(ledger, "driver_free") == kGiB - 10 * kMiB);
  CHECK(sum_of(ledger) == kGiB);
  device.driver_free_bytes = kGiB - 10 * kMiB;
  ledger = ledger_of(device);
  CHECK_FALSE(ledger.driver_free_stale);
  CHECK(part(ledger, "unattributed") == 0);
  device.driver_free_bytes += 1;
  CHECK(ledger_of(device).driver_free_stale);
}

TEST_CASE("managed memory may exceed the device, and that is no contradiction") {
  DeviceSnapshot device = mixed_device();
  device.outside.managed = 50 * kGiB;
  device.driver_free_bytes = kMiB;
  const Ledger ledger = ledger_of(device);
  CHECK(part(ledger, "outside_managed") == kGiB - 11 * kMiB);
  CHECK_FALSE(ledger.clamped);
  CHECK(sum_of(ledger) == kGiB);
}

TEST_CASE("nonsense is cut and said, and still sums") {
  DeviceSnapshot device = mixed_device();
  device.outside.arrays = UINT64_MAX;
  CHECK(ledger_of(device).clamped);
  CHECK(sum_of(ledger_of(device)) == kGiB);
  device = mixed_device();
  device.now.requested_bytes = UINT64_MAX;
  device.now.inactive_split_bytes = UINT64_MAX;
  CHECK(sum_of(ledger_of(device)) == kGiB);
  device.total_bytes = 0;
  CHECK(sum_of(ledger_of(device)) == 0);
  CHECK(ledger_of(device).clamped);
}

TEST_CASE("counters are found by name, and an absent one is zero") {
  DeviceSnapshot device = empty_device(kGiB);
  samples::set_counter(device, "live_bytes", 3, 9);
  CHECK(counter_current(device, "live_bytes") == 3);
  CHECK(counter_peak(device, "live_bytes") == 9);
  CHECK(counter_current(device, "no_such_counter") == 0);
}
