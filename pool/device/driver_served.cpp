// Stream-ordered allocations that the driver serves itself: by the program's own call, held to the limit, and booked as blocks (DriverBlocks).
// A call takes from the limit what the idle memory of its pool does not cover; that is known for sure only afterwards, and what was too much is taken back.
#include <algorithm>
#include <utility>

#include "pool/device/device_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;

namespace {
constexpr std::uint64_t kServedPause_ns = 20'000;
constexpr std::uint32_t kMoversPauses = 50'000;   ///< most, for threads that are in the driver for no longer than a call: a second at least
constexpr std::uint32_t kTakenBackPauses = 100;   ///< and for a free on a stream that has nothing else to do
}  // namespace

/// What is held of the limit for a call of the driver's, unless that succeeds. What lies idle in the pool that is to serve it is held already, and covers as much of it.
struct DevicePool::DriverCharge {
  DeviceState& device;
  const std::uint64_t bytes;
  std::uint64_t passed_bytes = 0;              ///< what was held beyond the limit before
  std::uint64_t covered_bytes = 0;
  std::uint64_t* all_covered_bytes = nullptr;  ///< where it stands until it is booked; the device's lock
  bool was_covered = false;
  bool is_held = false;

  DriverCharge(DeviceState& of, std::uint64_t rounded_bytes) : device(of), bytes(rounded_bytes) {}
  DriverCharge(const DriverCharge&) = delete;
  DriverCharge& operator=(const DriverCharge&) = delete;
  ~DriverCharge() { refund(); }

  /// Under the device's lock, which guards `all_bytes`.
  void cover(std::uint64_t by_bytes, std::uint64_t& all_bytes) {
    covered_bytes = by_bytes;
    all_covered_bytes = &all_bytes;
    all_bytes += by_bytes;
    was_covered = by_bytes != 0;
    passed_bytes = device.limit.passed_bytes();
    is_held = true;
  }
  /// All of it is held by itself now.
  void settled() { covered_bytes = 0; }
  void keep() { is_held = false; }
  void refund() {
    if (!std::exchange(is_held, false)) return;
    device.limit.refund(bytes - covered_bytes);
    if (covered_bytes == 0) return;
    const MutexLock lock(device.lock);
    *all_covered_bytes -= std::exchange(covered_bytes, 0);
  }
};

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

/// Room within the limit for one of these calls: in full, or as much as what lies idle in the pool that is to serve it does not cover. A call that idle memory
/// serves takes nothing; and who has freed in the order of a stream natively has it again on that stream, whatever runs there.
bool DevicePool::take_charge(const DriverServed& request, DriverCharge& charge) {
  charge.is_held = device_.limit.charge(charge.bytes);
  if (charge.is_held || !may_call_driver()) return charge.is_held;
  if (!idle_pools_.is_ours(request.is_of_default_pool)) {
    if (!IdlePools::are_others_asked(device_)) return false;
    const CUmemoryPool pool = request.mempool ? request.mempool() : nullptr;
    const MutexLock lock(device_.lock);
    const std::optional<std::uint64_t> covered_bytes = idle_pools_.charge_named(device_, pool, charge.bytes);
    if (covered_bytes) charge.cover(*covered_bytes, device_.mempools_covered_bytes);
    return covered_bytes.has_value();
  }
  for (const bool is_asked : {false, true}) {  // what the driver has come to since it was asked last
    if (is_asked) idle_pools_.tell_ours(device_, 0, true);
    const MutexLock lock(device_.lock);
    const std::optional<std::uint64_t> covered_bytes = idle_pools_.charge_ours(device_, charge.bytes);
    if (!covered_bytes) continue;
    charge.cover(*covered_bytes, device_.idle_covered_bytes);
    return true;
  }
  return false;
}

/// The call, and what it has left idle. What was covered is held by itself from then on.
CUresult DevicePool::call_charged(const DriverServed& request, DriverCharge& charge, const std::function<CUresult()>& call) {
  const CUresult result = call();
  const bool is_ours = idle_pools_.is_ours(request.is_of_default_pool);
  const std::uint64_t used_bytes = device_.driver_pool.counts_asked() ? request.bytes : charge.bytes;
  idle_pools_.tell_ours(device_, result == CUDA_SUCCESS && is_ours ? -static_cast<std::int64_t>(used_bytes) : 0, result != CUDA_SUCCESS, is_ours ? charge.covered_bytes : 0);
  if (!is_ours) idle_pools_.tell_others(device_, result != CUDA_SUCCESS, charge.covered_bytes);
  charge.settled();
  return result;
}

void DevicePool::trim_served(const DriverServed& request, std::uint64_t wanted_bytes) {
  if (idle_pools_.is_ours(request.is_of_default_pool)) idle_pools_.trim_ours(device_, 0, wanted_bytes);
  else idle_pools_.trim_others(device_, wanted_bytes);
}

/// Idle memory that was to serve the call was in pieces, or another stream's, and the driver took more than the limit has; nothing that goes back makes up for it.
bool DevicePool::is_beyond_limit(const DriverServed& request, const DriverCharge& charge) {
  // Until the block is booked, what it is rounded to is idle as well.
  const std::uint64_t most_bytes = charge.passed_bytes + (charge.bytes - request.bytes);
  if (device_.limit.passed_bytes() <= most_bytes) return false;
  const MutexLock lock(device_.lock);
  const auto others_move = [&]() CUPOOL_REQUIRES(device_.lock) { return (device_.leaving_bytes | device_.idle_covered_bytes | device_.mempools_covered_bytes) != 0; };
  for (std::uint32_t pauses = 0; pauses < kMoversPauses && others_move() && device_.limit.passed_bytes() > most_bytes; ++pauses) {
    const MutexUnlock unlocked(device_.lock);
    device_.services.clock.pause(kServedPause_ns);
  }
  if (const std::uint64_t passed_bytes = device_.limit.passed_bytes(); passed_bytes > most_bytes) trim_served(request, passed_bytes - most_bytes);
  return device_.limit.passed_bytes() > most_bytes;
}

/// Frees what the driver has just served, in the order of its stream: nobody has seen it. It goes back to the device when the stream has come to it, and until then it
/// serves nobody (DeviceState::taken_back_bytes). False: the driver keeps it, and the program may have it.
bool DevicePool::take_back(const DriverServed& request, DriverCharge& charge, CUdeviceptr address) {
  if (!device_.driver.has_cuMemFreeAsync() || !may_call_driver()) return false;
  {
    const RelaxedCaptureMode relaxed(device_.driver);
    if (device_.driver.cuMemFreeAsync(address, request.handle) != CUDA_SUCCESS) return false;
  }
  idle_pools_.tell_ours(device_, 0, true);
  idle_pools_.tell_others(device_, true);
  charge.refund();
  const MutexLock lock(device_.lock);
  const auto beyond_bytes = [&] { return device_.limit.passed_bytes() - std::min(device_.limit.passed_bytes(), charge.passed_bytes); };
  for (std::uint32_t pauses = 0; pauses < kTakenBackPauses && beyond_bytes() != 0; ++pauses) {
    trim_served(request, beyond_bytes());
    const MutexUnlock unlocked(device_.lock);
    device_.services.clock.pause(kServedPause_ns);
  }
  device_.taken_back_bytes = std::max(device_.taken_back_bytes, beyond_bytes());
  return true;
}

/// The driver is asked, and no lock is held.
Refused DevicePool::refusal_of(const DriverServed& request) const {
  if (!request.mempool_bounds || !may_call_driver()) return {request.api};
  const RelaxedCaptureMode relaxed(device_.driver);
  return {request.api, false, request.mempool_bounds()};
}

CUresult DevicePool::allocate_by_driver(const DriverServed& request, CUdeviceptr* out, std::uint16_t thread, const std::function<CUresult()>& call,
                                        const PoolSet::AskDriver& ask) {
  DriverBlocks::Node block = DriverBlocks::place();  // host memory first: once the driver has served it nothing may fail
  const std::uint64_t bytes = round_request(request.bytes);
  if (!used() || policy_ == config::Policy::async) open_driver_pool(request);
  DriverCharge held(device_, bytes);
  const auto tell = [&] { return refusal_of(request); };
  const auto take = [&] { return take_charge(request, held); };
  if (const Status charged = charge(bytes, request.bytes, tell, ask, std::cref(take)); !charged.ok()) return charged.code();
  held.is_held = true;
  CUresult result = call_charged(request, held, call);
  if (result == CUDA_SUCCESS && held.was_covered && is_beyond_limit(request, held) && take_back(request, held, *out)) {
    held.was_covered = false;
    const auto take_all = [&] { return device_.limit.charge(bytes); };
    if (const Status charged = charge(bytes, request.bytes, tell, ask, std::cref(take_all)); !charged.ok()) return charged.code();
    held.is_held = true;
    result = call_charged(request, held, call);
  }
  if (result != CUDA_SUCCESS) held.refund();  // the evidence is of what is held without it
  if (result == CUDA_ERROR_OUT_OF_MEMORY) note_refusal(request.bytes, refusal_of(request));
  else if (result != CUDA_SUCCESS) note_failure();
  if (result != CUDA_SUCCESS) return result;
  const MutexLock lock(device_.lock);
  held.keep();
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
  sample_first(false);
  notice_taken_from_graphs();
  figures_.publish(device_);
  return result;
}

void DevicePool::tell_mempools(bool must_ask) { idle_pools_.tell_others(device_, must_ask); }

std::optional<CUresult> DevicePool::free_by_driver(CUdeviceptr address, std::uint64_t stream, std::uint16_t thread, const std::function<CUresult()>& call) {
  if (!device_.has_driver_blocks.load(std::memory_order_relaxed)) return std::nullopt;
  DriverBlocks::Node block;
  {
    const MutexLock lock(device_.lock);
    block = driver_blocks_.begin_free(device_, address, thread, stream);
    if (block.empty()) return std::nullopt;
  }
  const CUresult result = call();
  const Extent& extent = block.mapped().extent;
  const std::uint64_t used_bytes = device_.driver_pool.counts_asked() ? extent.requested_bytes : extent.bytes;
  idle_pools_.tell_ours(device_, result == CUDA_SUCCESS && block.mapped().is_of_default_pool ? static_cast<std::int64_t>(used_bytes) : 0, result != CUDA_SUCCESS);
  if (!idle_pools_.is_ours(block.mapped().is_of_default_pool)) idle_pools_.tell_others(device_, result != CUDA_SUCCESS);
  const MutexLock lock(device_.lock);
  driver_blocks_.end_free(device_, std::move(block), result == CUDA_SUCCESS, thread, stream);
  idle_pools_.book_rounding(device_);
  figures_.publish(device_);
  return result;
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
