// Finds what came after an OOM: see aftermath.hpp. The timeline is read from its end: its OOMs are those of the records in the same order, without
// those that it has lost.
#include "pool/observe/aftermath.hpp"

#include <algorithm>

#include "pool/observe/ledger.hpp"

namespace cupool::observe {

namespace {

bool is_of(const Event& event, const OomRecord& oom) {
  return event.bytes == oom.evidence.request_bytes && event.requested_bytes == oom.requested_bytes &&
         event.address == oom.evidence.driver_free_bytes.value_or(0);
}

void judge(const DeviceSnapshot& device, const std::vector<OomRecord>& ooms, std::vector<std::optional<bool>>& out) {
  std::vector<std::size_t> own;  // newest last
  for (std::size_t i = 0; i < ooms.size(); ++i)
    if (ooms[i].device == device.ordinal) own.push_back(i);
  std::uint64_t largest_bytes = 0;
  for (auto event = device.timeline.rbegin(); event != device.timeline.rend() && !own.empty(); ++event) {
    if (event->kind == EventKind::allocate && event->thread != kPoolItself) largest_bytes = std::max(largest_bytes, event->bytes);
    const OomRecord& newest = ooms[own.back()];
    if (event->kind != EventKind::oom || !is_of(*event, newest)) continue;
    const bool is_served = newest.evidence.request_bytes != 0 && largest_bytes >= newest.evidence.request_bytes;
    if (is_served || !newest.evidence.is_outside_pool) out[own.back()] = is_served;  // memory outside the pool is no event of the timeline
    own.pop_back();
  }
  for (const std::size_t i : own) {  // these OOMs are older than the timeline: all of it came after them
    const std::uint64_t request_bytes = ooms[i].evidence.request_bytes;
    if (request_bytes != 0 && largest_bytes >= request_bytes) out[i] = true;
    else if (counter_current(device, "allocations") == ooms[i].allocations_before && !ooms[i].evidence.is_outside_pool) out[i] = false;
  }
}

}  // namespace

std::vector<std::optional<bool>> served_since(const Snapshot& snapshot) {
  std::vector<std::optional<bool>> out(snapshot.ooms.size());
  for (const DeviceSnapshot& device : snapshot.devices) judge(device, snapshot.ooms, out);
  return out;
}

}  // namespace cupool::observe
