// Divides a device's memory among its owners, in this order: the pool (exact), the program's other device memory (exact), what the driver keeps in
// pools and for graphs and its free bytes (samples), what may or may not be resident (managed), other processes (a sample), the rest.
#include "pool/observe/ledger.hpp"

#include <algorithm>
#include <string_view>

#include "pool/core/bytes.hpp"

namespace cupool::observe {

namespace {

/// Hands out a device's bytes until none are left.
class Divider {
 public:
  Divider(std::uint64_t total_bytes, Ledger& ledger) : left_(total_bytes), ledger_(ledger) {}

  /// False when the part had to be cut.
  bool take(const char* name, std::uint64_t wanted_bytes) {
    const std::uint64_t taken = std::min(wanted_bytes, left_);
    left_ -= taken;
    ledger_.parts.push_back({name, taken});
    return taken == wanted_bytes;
  }
  void take_exact(const char* name, std::uint64_t wanted_bytes) { ledger_.clamped |= !take(name, wanted_bytes); }
  std::uint64_t left() const { return left_; }

 private:
  std::uint64_t left_;
  Ledger& ledger_;
};

const CounterValue* find_counter(const DeviceSnapshot& device, std::string_view name) {
  const auto at = std::find_if(device.counters.begin(), device.counters.end(), [&](const CounterValue& c) { return c.name == name; });
  return at == device.counters.end() ? nullptr : &*at;
}

}  // namespace

std::uint64_t counter_current(const DeviceSnapshot& device, const char* name) {
  const CounterValue* counter = find_counter(device, name);
  return counter == nullptr ? 0 : counter->current;
}

std::uint64_t counter_peak(const DeviceSnapshot& device, const char* name) {
  const CounterValue* counter = find_counter(device, name);
  return counter == nullptr ? 0 : counter->peak;
}

Ledger ledger_of(const DeviceSnapshot& device) {
  Ledger ledger;
  Divider divider(device.total_bytes, ledger);
  const Fragmentation& now = device.now;
  const std::uint64_t deferred = counter_current(device, "deferred_bytes");
  const std::uint64_t pinned = std::min(now.inactive_split_bytes, now.free_bytes);
  const std::uint64_t requested = std::min(now.requested_bytes, now.live_bytes);

  divider.take_exact("live", requested);
  divider.take_exact("rounding", now.live_bytes - requested);
  divider.take_exact("deferred", deferred);
  divider.take_exact("free_releasable", now.free_bytes - pinned);
  divider.take_exact("free_pinned", pinned);
  // Held by the pool, and none of the above: the driver's own rounding of a region, pages of slabs.
  divider.take_exact("metadata", saturating_sub(saturating_sub(saturating_sub(now.reserved_bytes, now.live_bytes), deferred), now.free_bytes));
  divider.take_exact("outside_arrays", device.outside.arrays);
  divider.take_exact("outside_program_vmm", device.outside.program_vmm);
  divider.take("outside_mempools", device.outside.mempools);  // as the driver last said; so is the next
  divider.take("outside_graphs", device.outside.graphs);
  ledger.driver_free_known = device.driver_free_bytes > 0 || device.driver_free_unix_ns > 0;
  if (ledger.driver_free_known) ledger.driver_free_stale = !divider.take("driver_free", device.driver_free_bytes);
  // Managed memory lies where it was last touched: at most what is left is on this device, which is no contradiction.
  divider.take("outside_managed", device.outside.managed);
  ledger.others_known = device.other_process_bytes.has_value();
  if (ledger.others_known) divider.take("other_processes", *device.other_process_bytes);
  // Where the driver was never asked, its free memory is part of the rest, which is then not known to be in use.
  divider.take("unattributed", ledger.driver_free_known ? divider.left() : 0);
  if (!ledger.driver_free_known) divider.take("unknown", divider.left());
  return ledger;
}

}  // namespace cupool::observe
