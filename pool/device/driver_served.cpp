// Stream-ordered allocations that the driver serves itself: the program's own call is made, held to the limit (DriverCharge), and its block is booked
// (DriverBlocks).
#include <algorithm>
#include <utility>

#include "pool/device/device_pool.hpp"
#include "pool/device/driver_charge.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;

/// Under `async` the first allocation may be one of these: the driver's pool is configured then, because it is the pool.
void DevicePool::open_driver_pool(const DriverServed& request) {
  ContextPool* const home =
      request.is_of_default_pool && policy_ == config::Policy::async ? device_.services.contexts.find(request.context) : nullptr;
  const MutexLock lock(device_.lock);
  begin_use();
  if (home == nullptr || (preallocation_.is_done() && !preallocation_.is_under_way()) || capturing() || !may_call_driver() ||
      !DriverFree::is_current(device_))
    return;
  if (home->context != request.context) return;
  const PinnedContext pinned(device_.services.contexts, home, request.context);
  if (!pinned) return;
  preallocation_.await(device_);
  if (!preallocation_.is_done()) preallocation_.take(device_, *home);
}

/// Why the call was refused. Asks the driver; no lock is held.
Refused DevicePool::refusal_of(const DriverServed& request) const {
  if (!request.mempool_bounds || !may_call_driver()) return {request.api};
  const RelaxedCaptureMode relaxed(device_.driver);
  return {request.api, false, request.mempool_bounds()};
}

CUresult DevicePool::allocate_by_driver(const DriverServed& request, CUdeviceptr* out, std::uint16_t thread, const std::function<CUresult()>& call,
                                        const PoolSet::AskDriver& ask) {
  DriverBlocks::Node block = DriverBlocks::place();  // host memory first: once the driver has served the call nothing may fail
  const std::uint64_t bytes = round_request(request.bytes);
  if (!used() || policy_ == config::Policy::async) open_driver_pool(request);
  DriverCharge held(device_, idle_pools_, request, bytes);
  CUresult result = CUDA_SUCCESS;
  const auto tell = [&] { return refusal_of(request); };
  for (bool is_again : {false, true}) {  // second pass: what waits to be freed goes first
    bool must_make_room = is_again;
    const auto take = [&] { return !std::exchange(must_make_room, false) && held.take(); };
    if (const Status charged = charge(bytes, request.bytes, tell, ask, std::cref(take)); !charged.ok()) return charged.code();
    held.hold();
    result = held.run(call);
    if (result != CUDA_SUCCESS || !held.is_beyond_limit(*out) || !held.take_back(*out)) break;
    if (!is_again) continue;
    *out = 0;
    const Refused what = tell();
    const MutexLock lock(device_.lock);
    return refusals_.fail_by_limit(device_, request.bytes, what, ask).code;
  }
  if (result != CUDA_SUCCESS) held.refund();  // before the evidence is collected, which must not count the charge
  if (result == CUDA_ERROR_OUT_OF_MEMORY) note_refusal(request.bytes, refusal_of(request));
  else if (result != CUDA_SUCCESS) note_failure();
  if (result != CUDA_SUCCESS) return result;
  const MutexLock lock(device_.lock);
  held.keep();
  orphans_.forget_gone(*out);
  Extent& extent = block.mapped().extent;
  extent.address = *out;
  extent.bytes = bytes;
  extent.requested_bytes = request.bytes;
  extent.allocated_ticks = ticks();
  extent.state = heap::ExtentState::live;
  block.mapped().is_of_default_pool = request.is_of_default_pool;
  block.mapped().context = request.goes_with_context ? request.context : nullptr;
  block.mapped().serial = device_.services.driver_blocks_made.fetch_add(1, std::memory_order_relaxed) + 1;
  driver_blocks_.add(device_, std::move(block), thread, request.stream);
  idle_pools_.book_rounding(device_);
  driver_free_.sample_first(device_, false);
  graph_memory_.notice_taken(device_);
  figures_.publish(device_);
  return result;
}

void DevicePool::update_mempools(bool must_ask) { idle_pools_.update_others(device_, must_ask); }

std::optional<CUresult> DevicePool::free_by_driver(CUdeviceptr address, std::uint64_t stream, std::uint16_t thread,
                                                   const std::function<CUresult()>& call) {
  if (!device_.has_driver_blocks.load(std::memory_order_relaxed)) return std::nullopt;
  DriverBlocks::Node block;
  {
    const MutexLock lock(device_.lock);
    block = driver_blocks_.begin_free(device_, address, thread, stream);
    if (block.empty()) return std::nullopt;
  }
  const CUresult result = call();
  const Extent& extent = block.mapped().extent;
  const std::uint64_t used_bytes = device_.driver_pool.counts_requested() ? extent.requested_bytes : extent.bytes;
  idle_pools_.update_ours(device_, result == CUDA_SUCCESS && block.mapped().is_of_default_pool ? static_cast<std::int64_t>(used_bytes) : 0,
                          result != CUDA_SUCCESS);
  if (!idle_pools_.is_ours(block.mapped().is_of_default_pool)) idle_pools_.update_others(device_, result != CUDA_SUCCESS);
  const MutexLock lock(device_.lock);
  if (result == CUDA_SUCCESS && stream != 0) note_backlog(stream, {block.mapped().extent.bytes, 0});
  driver_blocks_.end_free(device_, std::move(block), result == CUDA_SUCCESS, stream);
  idle_pools_.book_rounding(device_);
  figures_.publish(device_);
  return result;
}

void DevicePool::note_backlog(std::uint64_t identity, const DriverBacklog::Sums& bytes) {
  device_.backlog_at_driver.add(identity, bytes, device_.services.freed_at_driver.fetch_add(1, std::memory_order_relaxed) + 1);
}

/// Notes a block that the driver has freed in the order of `stream`.
void DevicePool::note_backlog(CUstream stream, std::uint64_t bytes) {
  const bool is_pooled = policy_ == config::Policy::async;
  const std::uint64_t identity = is_default_stream(stream) ? 0 : reinterpret_cast<std::uint64_t>(stream);
  note_backlog(identity, {is_pooled ? bytes : 0, is_pooled ? 0 : bytes});
}

void DevicePool::after_wait_at_driver(std::uint64_t identity, std::uint64_t freed) {
  const MutexLock lock(device_.lock);
  if (identity != 0) return device_.backlog_at_driver.waited_for(identity, freed);
  // A wait for a whole context does not say which streams it covers, unless it is the only context.
  const auto is_in_use = [](const auto& home) { return home->is_in_use(); };
  if (std::count_if(homes_.begin(), homes_.end(), is_in_use) <= 1) device_.backlog_at_driver.is_over(freed);
}

bool DevicePool::has_driver_block(CUdeviceptr address) {
  if (!device_.has_driver_blocks.load(std::memory_order_relaxed)) return false;
  const MutexLock lock(device_.lock);
  return driver_blocks_.contains(address);
}

void DevicePool::forget_driver_block(CUdeviceptr address) {
  if (!device_.has_driver_blocks.load(std::memory_order_relaxed)) return;
  const MutexLock lock(device_.lock);
  driver_blocks_.forget(device_, address);
  idle_pools_.book_rounding(device_);
}

void DevicePool::forget_driver_blocks(CUcontext context, std::uint64_t before) {
  if (!device_.has_driver_blocks.load(std::memory_order_relaxed)) return;
  const MutexLock lock(device_.lock);
  driver_blocks_.forget(device_, context, before);
  idle_pools_.book_rounding(device_);
  figures_.publish(device_);
}

}  // namespace cupool::device
