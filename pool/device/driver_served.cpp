// Stream-ordered allocations that the driver serves itself: by the program's own call, held to the limit, and booked as blocks (DriverBlocks).
// As with NativeBlocks a block leaves the books before the driver's free, because the driver may give the address to another thread at once.
#include <algorithm>
#include <utility>

#include "pool/device/device_pool.hpp"

namespace cupool::device {

using heap::Extent;
using observe::EventKind;

namespace {
/// What was charged for a call of the driver's, unless that succeeds.
struct Charged {
  LimitAccount& limit;
  std::uint64_t bytes;
  ~Charged() { limit.refund(bytes); }
};
}  // namespace

/// The first pooled allocation under `async` may be one of these: the driver's pool is the pool.
void DevicePool::open_driver_pool(const DriverServed& request) {
  ContextPool* const home = request.is_of_default_pool && policy_ == config::Policy::async ? device_.services.contexts.find(request.context) : nullptr;
  const MutexLock lock(device_.lock);
  begin_use();
  if (home == nullptr || (preallocated_ && !preallocating_) || capturing() || !may_call_driver() || !is_current()) return;
  if (home->context != request.context || device_.services.contexts.pin(home, request.context) != Pin::held) return;
  const Unpinner unpinner(device_.services.contexts, home);
  await_preallocation();
  if (!preallocated_) preallocate(*home);
}

/// Under `async`: what lies idle in the driver's pool after a call of the program's that put `freed_bytes` there, or took as much. Two
/// questions cost 140 ns, the call 340 (H100, driver 580): most answers are reckoned from the last one; under a limit none is, nor where the driver refused something.
void DevicePool::tell_idle(std::int64_t freed_bytes, bool must_ask) {
  if (policy_ != config::Policy::async || !may_call_driver()) return;
  const MutexLock lock(device_.lock);
  must_ask = must_ask || device_.limit.limit_bytes() != 0 || unasked_calls_-- == 0;
  if (must_ask) unasked_calls_ = kUnaskedCalls;
  for (std::size_t i = 0; i < homes_.size(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    const CUcontext context = home.context;
    if (context == nullptr || device_.services.contexts.pin(&home, context) != Pin::held) continue;
    const Unpinner unpinner(device_.services.contexts, &home);
    if (must_ask) {
      const MutexUnlock unlocked(device_.lock);
      home.natives.source().ask_idle(device_);
    } else {
      device_.driver_pool.reckon(freed_bytes);
    }
    home.natives.book_idle(device_);
    return;  // the pool is the device's, whichever context's books tell of it
  }
}

CUresult DevicePool::allocate_by_driver(const DriverServed& request, CUdeviceptr* out, std::uint16_t thread, const std::function<CUresult()>& call,
                                        const PoolSet::AskDriver& ask) {
  DriverBlocks::Node block = DriverBlocks::place();  // host memory first: once the driver has served it nothing may fail
  const std::uint64_t bytes = round_request(request.bytes);
  if (!used() || policy_ == config::Policy::async) open_driver_pool(request);
  if (const Status charged = charge(bytes, request.bytes, request.api, ask); !charged.ok()) return charged.code();
  Charged charged{device_.limit, bytes};
  const CUresult result = call();
  const std::uint64_t used_bytes = device_.driver_pool.counts_asked() ? request.bytes : bytes;
  tell_idle(result == CUDA_SUCCESS && request.is_of_default_pool ? -static_cast<std::int64_t>(used_bytes) : 0, result != CUDA_SUCCESS);
  if (result != CUDA_SUCCESS) device_.limit.refund(std::exchange(charged.bytes, 0));  // the evidence is of what is held without it
  if (result == CUDA_ERROR_OUT_OF_MEMORY) note_refusal(request.bytes, {request.api, false, request.mempool_max_bytes ? request.mempool_max_bytes() : 0});
  if (result != CUDA_SUCCESS) return result;
  const MutexLock lock(device_.lock);
  charged.bytes = 0;
  Extent& extent = block.mapped().extent;
  extent.address = *out;
  extent.bytes = bytes;
  extent.requested_bytes = request.bytes;
  extent.allocated_ticks = ticks();
  extent.state = heap::ExtentState::live;
  block.mapped().is_of_default_pool = request.is_of_default_pool;
  block.mapped().context = request.goes_with_context ? request.context : nullptr;
  block.mapped().serial = device_.services.driver_blocks_made.fetch_add(1, std::memory_order_relaxed) + 1;
  if (const DriverBlocks::Node before = driver_blocks_.take(*out); !before.empty()) lose_driver_block(before.mapped().extent);  // it ended past us
  driver_blocks_.add(std::move(block));
  has_driver_blocks_.store(true, std::memory_order_relaxed);
  device_.counters().allocations.add();
  device_.counters().driver_served.add();
  device_.counters().regions_created.add();
  enter_driver_block(extent, thread, request.stream);
  book_rounding();
  sample_first(false);
  publish_figures();
  return result;
}

/// Under `async`: what lies idle in the driver's pool, after the blocks there have changed.
void DevicePool::book_rounding() {
  if (policy_ != config::Policy::async || device_.pool_rounding_bytes == driver_blocks_.rounding_bytes()) return;
  device_.pool_rounding_bytes = driver_blocks_.rounding_bytes();
  const auto home = std::find_if(homes_.begin(), homes_.end(), [](const auto& one) { return one->context != nullptr; });
  if (home != homes_.end()) (*home)->natives.book_idle(device_);
}

/// At its allocation, or because the driver refused to free it.
void DevicePool::enter_driver_block(const Extent& extent, std::uint16_t thread, std::uint64_t stream) {
  device_.add_driver_served(static_cast<std::int64_t>(extent.bytes));
  device_.note_region(EventKind::region_create, extent.address, extent.bytes);
  count_live(extent, 1);
  if (has_several_magazines_.load(std::memory_order_relaxed)) keep_promises();
  look_for_peak();
  device_.note(EventKind::allocate, extent.allocated_ticks, extent, thread, stream);
}

/// Before the driver's free of it, or because it is gone without one.
void DevicePool::leave_driver_block(const Extent& extent, std::uint16_t thread, std::uint64_t stream) {
  if (peak_is_new_) sample_peak();
  device_.note_freed(extent, thread, stream);
  count_live(extent, -1);
  device_.add_driver_served(-static_cast<std::int64_t>(extent.bytes));
  device_.note_region(EventKind::region_release, extent.address, extent.bytes);
}

void DevicePool::lose_driver_block(const Extent& extent) {
  leave_driver_block(extent, 0, 0);
  device_.counters().ended_blocks.add();
  device_.limit.refund(extent.bytes);
}

std::optional<CUresult> DevicePool::free_by_driver(CUdeviceptr address, std::uint64_t stream, std::uint16_t thread, const std::function<CUresult()>& call) {
  if (!has_driver_blocks_.load(std::memory_order_relaxed)) return std::nullopt;
  DriverBlocks::Node block;
  {
    const MutexLock lock(device_.lock);
    block = driver_blocks_.take(address);
    if (block.empty()) return std::nullopt;
    leave_driver_block(block.mapped().extent, thread, stream);
    device_.counters().frees.add();
    device_.leaving_bytes += block.mapped().extent.bytes;
  }
  const CUresult result = call();
  Extent& extent = block.mapped().extent;
  const std::uint64_t bytes = extent.bytes;
  const std::uint64_t used_bytes = device_.driver_pool.counts_asked() ? extent.requested_bytes : bytes;
  tell_idle(result == CUDA_SUCCESS && block.mapped().is_of_default_pool ? static_cast<std::int64_t>(used_bytes) : 0, result != CUDA_SUCCESS);
  const MutexLock lock(device_.lock);
  device_.leaving_bytes -= bytes;
  if (result != CUDA_SUCCESS) device_.counters().frees.take_back();
  if (result == CUDA_SUCCESS || !driver_blocks_.add(std::move(block))) {
    device_.limit.refund(bytes);
    device_.counters().regions_released.add();
    device_.counters().driver_served.add(result == CUDA_SUCCESS ? 1 : 0);
  } else {
    extent.allocated_ticks = ticks();
    enter_driver_block(extent, thread, stream);
  }
  book_rounding();
  publish_figures();
  return result;
}

bool DevicePool::has_driver_block(CUdeviceptr address) {
  if (!has_driver_blocks_.load(std::memory_order_relaxed)) return false;
  const MutexLock lock(device_.lock);
  return driver_blocks_.contains(address);
}

void DevicePool::forget_driver_block(CUdeviceptr address) {
  if (!has_driver_blocks_.load(std::memory_order_relaxed)) return;
  const MutexLock lock(device_.lock);
  if (const DriverBlocks::Node block = driver_blocks_.take(address); !block.empty()) lose_driver_block(block.mapped().extent);
  book_rounding();
}

void DevicePool::forget_driver_blocks(CUcontext context, std::uint64_t before) {
  if (!has_driver_blocks_.load(std::memory_order_relaxed)) return;
  const MutexLock lock(device_.lock);
  for (const auto& [address, block] : driver_blocks_.all())
    if (DriverBlocks::goes_with(block, context, before)) lose_driver_block(block.extent);
  driver_blocks_.forget(context, before);
  book_rounding();
  publish_figures();
}

}  // namespace cupool::device
