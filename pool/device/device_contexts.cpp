// The contexts of one device: a ContextPool is made when a context is first seen, and its books end with the context.
#include <algorithm>
#include <optional>
#include <string>

#include "pool/core/bytes.hpp"
#include "pool/device/device_birth.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/device/fence.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/segment_heap.hpp"

namespace cupool::device {

using heap::Extent;
using observe::EventKind;

namespace {
constexpr std::uint64_t kShorterEnd = 4;
constexpr std::uint64_t kLongestPinPause_ns = 2'000'000;

std::string text_of(CUcontext context) { return "context " + observe::human_address(reinterpret_cast<std::uintptr_t>(context)); }
}  // namespace

/// Where the next context goes: on with an orphan, so that its blocks lie in the pages of those that stay, or to a ContextPool without blocks. Not a
/// primary context, with whose end blocks of memory pools go; nor where several devices are in use, since the memory may be open for some of them.
ContextPool* DevicePool::place_for(BlockLife life) {
  const bool may_adopt = life == BlockLife::pool && may_page() && !device_.services.contexts.has_others(device_);
  ContextPool* unused = nullptr;
  for (const auto& home : homes_) {
    if (may_adopt && home->is_orphan && !home->is_emptying && home->releasing_abandoned == 0 && home->pooled->can_serve_next()) {
      home->is_orphan = home->must_empty = false;
      home->has_adopted = true;
      return home.get();
    }
    if (!home->is_in_use()) unused = home.get();
  }
  if (unused != nullptr) return unused;
  std::unique_ptr<BlockSource> source;
  if (policy_ == config::Policy::async) source = std::make_unique<AsyncBlocks>();
  else source = std::make_unique<PlainBlocks>(policy_ == config::Policy::platform);
  homes_.push_back(std::make_unique<ContextPool>(*this, device_, std::move(source)));
  return homes_.back().get();
}

ContextPool* DevicePool::context_seen(CUcontext context, BlockLife life) {
  const MutexLock lock(device_.lock);
  for (const auto& home : homes_)
    if (home->context == context) return home.get();
  ContextPool* const unused = place_for(life);
  if (!unpooled_ && unused->pooled == nullptr) unused->pooled = make_heap();
  unused->can_outlive.store(unused->pooled != nullptr && unused->pooled->can_outlive(), std::memory_order_relaxed);
  device_.services.contexts.add(unused, context);
  unused->context = context;
  unused->serving = true;
  device_.log(config::LogLevel::debug, [context] { return text_of(context) + " is served"; });
  orphans_.free_left(device_, true);
  return unused;
}

/// Before a context ends: waits for other contexts' work on its deferred blocks. Natively a free would have waited for that work, while the end of
/// the context waits for the context's own work only and takes the block along. The wait is short (end_bound_ns_) and polls, since it may also meet
/// work that was submitted after the free; and most contexts end in programs that never share a block between contexts, so a wait in vain makes the
/// next ones shorter. While something captures nothing can be recorded, and nothing is waited for.
void DevicePool::await_deferred(ContextPool& home) {
  PoolServices& services = device_.services;
  if (services.contexts.is_only(&home)) return;
  const MutexLock lock(device_.lock);
  const std::uint64_t until_ns = services.clock.now_ns() + end_bound_ns_;
  magazines_.close_all(device_);
  std::optional<bool> is_in_vain;
  for (std::uint64_t pause_ns = kDriverCallPause_ns; may_call_driver() && !capturing() && !device_.disabled && deferred_.holds(&home);
       pause_ns = std::min(2 * pause_ns, kLongestPinPause_ns)) {
    if (device_.services.synchronises()) static_cast<void>(deferral_.synchronise_and_retire(device_, nullptr));
    if (!deferred_.holds(&home)) break;
    const MutexUnlock unlocked(device_.lock);
    Fence fence;
    FenceResult result = fence.record(device_, nullptr);
    fence.leave_out(home);  // the context's end waits for its own work
    const std::uint64_t now_ns = services.clock.now_ns();
    if (result.answer == FenceAnswer::done) result = fence.poll_for(device_, saturating_sub(until_ns, now_ns));
    fence.clear(services.contexts);
    is_in_vain = result.answer != FenceAnswer::done;
    if (!*is_in_vain || now_ns >= until_ns) break;
    services.clock.pause(pause_ns);
  }
  if (is_in_vain) end_bound_ns_ = *is_in_vain ? end_bound_ns_ / kShorterEnd : kEndBound_ns;
}

CUresult DevicePool::end_context(ContextPool* home, CUcontext context, const std::function<CUresult()>& destroy, const std::function<bool()>& is_dead,
                                 PoolBlocks pool_blocks) {
  ContextRegistry& contexts = device_.services.contexts;
  await_deferred(*home);
  Pin began = contexts.begin_end(home, context);
  // Another thread is ending the context, and may fail to.
  for (; began == Pin::ending; began = contexts.begin_end(home, context)) device_.services.clock.pause(kDriverCallPause_ns);
  if (began == Pin::gone) return destroy();
  {
    const MutexLock lock(device_.lock);
    home->serving = false;
    magazines_.close_all(device_);
  }
  // Threads that are in the driver with this context leave first; no thread enters any more.
  while (contexts.is_pinned(home)) device_.services.clock.pause(kDriverCallPause_ns);
  const CUresult result = destroy();
  const bool gone = is_dead();
  const MutexLock lock(device_.lock);
  if (gone) forget(*home, pool_blocks);
  else home->serving = true;
  if (gone)
    device_.log(config::LogLevel::debug,
                [&] { return text_of(context) + (home->is_orphan ? " has ended; blocks of memory pools stay" : " has ended"); });
  contexts.finish_end(home, gone);
  if (gone) orphans_.free_left(device_, false);
  if (!gone || home->pooled == nullptr || !may_call_driver()) return result;
  ++home->releasing_abandoned;
  home->pooled->release_abandoned(device_);
  const bool is_last = --home->releasing_abandoned == 0;    // the next context may have come and gone meanwhile
  if (is_last && !home->is_in_use()) home->pooled.reset();  // the next context may need a heap of the other kind
  return result;
}

void DevicePool::retire_outliving() {
  const MutexLock lock(device_.lock);
  if (!may_call_driver() || std::none_of(homes_.begin(), homes_.end(), [](const auto& one) { return one->is_orphan; })) return;
  static_cast<void>(deferral_.close_epoch(device_, nullptr, Deferral::Closing::late));
  // Where no event covers a context, the next free would wait for it, and perhaps none comes. With the last context all work is over.
  PoolServices& services = device_.services;
  if (!services.has_context_events() && services.contexts.is_empty()) static_cast<void>(deferral_.synchronise_and_retire(device_, nullptr));
  stream_frees_.retire_all(device_, nullptr, false);
  orphans_.empty(device_);
}

/// The backing is chosen for each context when it is first seen. Under `auto`, pages serve only while no other device is in use: copies between
/// devices without peer access fail on mapped memory where they work on cuMemAlloc memory.
bool DevicePool::may_page() const {
  const config::Backing backing = device_.services.options.backing;
  return backing == config::Backing::pages ||
         (backing == config::Backing::automatic && !device_.services.keeps_to_segments.load(std::memory_order_relaxed) &&
          !device_.services.contexts.has_others(device_));
}

std::unique_ptr<DeviceAllocator> DevicePool::make_heap() {
  const config::Backing backing = device_.services.options.backing;
  const bool may_page = this->may_page();
  auto memory = std::make_unique<vmm::VirtualMemory>(device_.driver, device_.ordinal, device_.services.clock);
  const bool is_available = memory->available() && !device_.opens_no_pages;
  device_.pages_available = is_available && !may_page;
  if (may_page && is_available) {
    set_backing(device_.live, "pages");
    return std::make_unique<PageHeap>(device_.total_bytes, std::move(memory));
  }
  if (backing == config::Backing::pages && !device_.opens_no_pages && may_call_driver())  // while the process exits the driver was not asked
    device_.services.warn("CUPOOL_BACKING=pages: GPU " + std::to_string(device_.ordinal) +
                          " or its driver has no virtual memory management; served from segments");
  set_backing(device_.live, "segments");
  return std::make_unique<SegmentHeap>(device_.total_bytes);
}

/// A context that is being ended needs no access for another device any more.
Status DevicePool::share_pages(ContextPool* home, CUcontext context, int ordinal) {
  const MutexLock lock(device_.lock);
  if (home->context != context || home->pooled == nullptr || ordinal == device_.ordinal) return {};
  const PinnedContext pinned(device_.services.contexts, home, context);
  if (!pinned) return {};
  const Status shared = home->pooled->share(device_, ordinal);
  return shared.ok() ? orphans_.share(device_, ordinal) : shared;
}

/// Takes lost blocks out of the books.
struct DevicePool::Books final : DeviceAllocator::LossVisitor {
  Books(DevicePool& device_pool, std::uint64_t at_ticks) : pool(device_pool), now(at_ticks) {}
  void lost(Extent& extent) override CUPOOL_REQUIRES(pool.device_.lock) {
    Magazines::leave_table(&extent);
    if (!is_counted_live(extent)) {
      pool.device_.counters().deferred_bytes.add(-static_cast<std::int64_t>(extent.bytes));
    } else {
      pool.device_.count_live(extent, -1);
      pool.device_.counters().ended_blocks.add();
      pool.device_.note(EventKind::free_requested, now, extent, 0);
    }
    if ((extent.flags & kFreedInOrderFlag) == 0) pool.device_.note(EventKind::free_completed, now, extent, 0);
  }
  void stays(Extent& extent) override CUPOOL_REQUIRES(pool.device_.lock) { Magazines::leave_table(&extent); }
  DevicePool& pool;
  const std::uint64_t now;
};

/// The context took its memory along: no driver call, only the books. With PoolBlocks::stay, blocks of memory pools live on; the ContextPool is an
/// orphan then.
void DevicePool::forget(ContextPool& home, PoolBlocks pool_blocks) {
  magazines_.close_all(device_);
  if (magazines_.is_peak_new()) figures_.sample_peak(device_);
  // What stays of earlier contexts is no business of this one's end, whichever it is.
  if (home.has_adopted) pool_blocks = PoolBlocks::stay;
  // Nor is what streams of other contexts have freed, for which await_deferred() waits only where events cover a context.
  const bool can_stay = pool_blocks == PoolBlocks::stay && home.pooled != nullptr && home.pooled->can_outlive();
  const bool also_deferred = home.has_adopted || (can_stay && !device_.services.has_context_events());
  if (also_deferred) stream_frees_.leave_pool_blocks(device_, home);
  deferred_.forget(&home, also_deferred);
  preallocation_.forget(home);
  Books books(*this, ticks());
  if (home.pooled != nullptr) {
    if (pool_blocks == PoolBlocks::stay) home.is_orphan = home.must_empty = home.pooled->outlive(device_, books, also_deferred);
    else home.pooled->abandon(device_, books);
    for (const StreamLanes::Entry& entry : home.streams.entries()) home.pooled->remove_lane(entry.lane);
  }
  home.streams.forget();
  home.release_stream.store(nullptr, std::memory_order_relaxed);
  home.late_given_bytes = home.late_arrived_bytes = 0;
  if (pool_blocks == PoolBlocks::stay) home.natives.outlive(device_, books, false);
  else home.natives.abandon(device_, books);
  home.context = nullptr;
  home.serving = false;
  home.has_adopted = false;
  figures_.publish(device_);
}

/// The driver has given the address of a native block again, so that block is gone: it leaves the books before a look-up can meet it.
void DevicePool::forget_given_again(ContextPool& home) {
  if (!home.natives.has_given_again()) return;
  if (magazines_.is_peak_new()) figures_.sample_peak(device_);
  Books books(*this, ticks());
  home.natives.lose_given_again(device_, books);
}

}  // namespace cupool::device
