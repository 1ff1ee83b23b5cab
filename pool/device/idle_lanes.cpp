// Before the pool grows: what other streams keep is everybody's where their work is over at this moment. The driver's own pools reuse a completed
// free likewise (CUDA Driver API 13.0, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC). One event and one look for each lane; where its stream has work
// the lane stays as it is. And what a stream keeps that only frees goes to everybody as it comes.
#include <algorithm>
#include <array>

#include "pool/device/device_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
constexpr std::uint64_t kLeastHandOver_bytes = 32 * kMiB;
constexpr std::uint64_t kHandOverShare = 64;  ///< so large a part of the need is an event worth
}

/// Lanes that hold a good part of what the request needs. True when anything has become everybody's.
bool DevicePool::open_idle_lanes(ContextPool& home, const AllocationRequest& request) {
  if (capturing() || !may_call_driver() || home.streams.has_stamps_in_lanes()) return false;  // stamped: memory is short, and other rungs see to it
  visit_own_magazine(home, &DevicePool::return_to_lanes);
  std::array<std::uint64_t, StreamLanes::kMostLanes> identities{};
  std::size_t count = 0;
  for (const StreamLanes::Entry& entry : home.streams.entries())
    if (entry.identity != request.stream.identity && !entry.busy && home.pooled->lane_bytes(entry.lane) >= request.bytes / kIdleLaneShare + 1)
      identities[count++] = entry.identity;
  bool is_more = false;
  for (std::size_t i = 0; i < count && home.context != nullptr; ++i) is_more = open_lane_if_idle(home, identities[i]) || is_more;
  return is_more;
}

/// An event, not a query of the stream: it covers what was in the lane before, while others go on freeing into it.
bool DevicePool::open_lane_if_idle(ContextPool& home, std::uint64_t identity) {
  StreamLanes::Entry* entry = home.streams.entry(identity);
  if (entry == nullptr || entry->busy || capturing()) return false;
  if (device_.services.contexts.pin(&home, home.context) != Pin::held) return false;
  const Unpinner unpinner(device_.services.contexts, &home);
  const std::uint32_t lane = entry->lane;
  const auto lane_bytes = static_cast<std::int64_t>(home.pooled->lane_bytes(lane));
  if (lane_bytes == 0) return false;
  Batch holes;
  home.pooled->drain_lane(lane, holes);
  device_.counters().deferred_bytes.add(lane_bytes);
  FenceResult result;
  Epoch* const epoch = record_lane(home, *entry, holes, true, &result);
  if (epoch == nullptr) {
    return_holes(home, lane, holes);
    return false;
  }
  epoch->fence.clear(device_.services.contexts);
  const bool is_idle = result.answer == FenceAnswer::done && result.error.code == CUDA_SUCCESS;
  const Batch back = deferred_.finish(epoch);
  if (!is_idle) {
    return_holes(home, lane, back);
    return false;
  }
  device_.counters().lanes_drained.add();
  retire(back);
  return true;
}

/// A stream that frees what others allocate, a consumer behind a producer, keeps it from them until they miss, with no event yet: each time the pool would grow by what the stream is behind.
/// So its lane is drained as it fills, and what is over goes to everybody.
void DevicePool::hand_over(ContextPool& home, std::uint64_t identity) {
  if (!home.streams.are_several() || capturing()) return;
  const StreamLanes::Entry* const entry = home.streams.entry(identity);
  if (entry == nullptr || !StreamLanes::only_frees(*entry)) return;
  if (home.pooled->lane_bytes(entry->lane) < std::max(kLeastHandOver_bytes, device_.need_bytes() / kHandOverShare)) return;
  const CUcontext context = home.context;
  drain_stream(home, identity, false);
  Error ignored{};  // for the call that meets it
  for (int looks = 0; looks < 2 && home.context == context && retire_oldest(context, false, &ignored); ++looks) {
  }
}

/// The program has waited for the stream (0: for all of the context) by a call of its own that began after `fills`: what was in the lane then is over, and
/// everybody's from now on, without a driver call. A lane that anything has come into since stays as it is.
void DevicePool::open_waited_lanes(ContextPool& home, std::uint64_t identity, std::uint64_t fills) {
  const MutexLock lock(device_.lock);
  if (home.pooled == nullptr || !home.streams.are_several()) return;  // one stream has all of it anyway
  if (home.streams.has_stamps_in_lanes()) return;  // memory is short: what was freed has events of its own, by which others get it
  const std::uint64_t least_bytes = least_early_bytes();
  bool is_more = false;
  for (const StreamLanes::Entry& entry : home.streams.entries()) {
    const bool is_meant = identity == 0 || entry.identity == identity;
    if (!is_meant || entry.busy || entry.last_fill > fills || home.pooled->lane_bytes(entry.lane) < least_bytes) continue;
    Batch holes;
    const auto lane_bytes = static_cast<std::int64_t>(home.pooled->lane_bytes(entry.lane));
    home.pooled->drain_lane(entry.lane, holes);
    device_.counters().deferred_bytes.add(lane_bytes);
    device_.counters().lanes_drained.add();
    retire(holes);
    is_more = true;
  }
  if (is_more) publish_figures();
}

}  // namespace cupool::device
