// Orphans: see orphans.hpp.
#include "pool/device/orphans.hpp"

#include <algorithm>
#include <new>

#include "pool/device/fence.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
/// For a heap without blocks.
struct NothingLost final : DeviceAllocator::LossVisitor {
  void lost(heap::Extent&) override {}
  void stays(heap::Extent&) override {}
};

/// A primary context that has ended is seen once more where it is current in a thread that comes late: nothing is given back by way of it, and asked
/// through it nothing would be there.
bool can_be_asked(DeviceState& device, CUcontext context) {
  unsigned version = 0;
  if (device.driver.has_cuCtxGetApiVersion() && is_context_gone(device.driver.cuCtxGetApiVersion(context, &version))) return false;
  return ScopedContext(device.driver, context).status().ok();
}
}  // namespace

std::uint64_t Orphans::empty(DeviceState& device, bool again) {
  std::uint64_t released_bytes = 0;
  for (std::size_t i = 0; i < homes_.size() && device.services.may_call_driver(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    if (!home.is_orphan || home.is_emptying) continue;  // the thread that is emptying it looks again
    if (again && home.pooled->figures(device).wholly_free_bytes != 0) home.must_empty = true;
    Mover mover(moves_);
    home.is_emptying = true;
    std::uint64_t bytes = 0;
    while (home.is_orphan && home.must_empty && device.services.may_call_driver()) bytes += empty_one(device, home);
    home.is_emptying = false;
    mover.note_given_back(device, bytes);
    released_bytes += bytes;
  }
  if (released_bytes != 0) figures_.publish(device);
  return released_bytes;
}

std::uint64_t Orphans::empty_one(DeviceState& device, ContextPool& home) {
  home.must_empty = false;
  if (home.pooled->holds_blocks()) {
    try {
      return home.pooled->release(device, home, kEverything_bytes, false);
    } catch (const std::bad_alloc&) {  // host memory is out: it is tried again when the next block goes
      return 0;
    }
  }
  const std::uint64_t bytes = home.pooled->figures(device).region_bytes;
  NothingLost nothing;
  home.pooled->abandon(device, nothing);
  home.pooled->release_abandoned(device);
  home.is_orphan = false;
  if (home.releasing_abandoned == 0) home.pooled.reset();  // the next context may need a heap of the other kind
  return bytes;
}

Status Orphans::share(DeviceState& device, int ordinal) {
  Status shared;
  for (std::size_t i = 0; i < homes_.size() && shared.ok(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    if (!home.is_orphan || home.is_emptying) continue;
    home.is_emptying = true;
    shared = home.pooled->share(device, ordinal);
    home.is_emptying = false;
  }
  empty(device);
  return shared;
}

bool Orphans::is_left(std::uint64_t address) const {
  return std::any_of(homes_.begin(), homes_.end(), [address](const auto& home) { return home->natives.is_left(address); });
}

void Orphans::forget_gone(CUdeviceptr address) {
  for (const auto& home : homes_) home->natives.forget_gone(address);
}

void Orphans::free_left(DeviceState& device, bool is_new) {
  const auto has_left = [](const auto& home) { return home->natives.has_left(); };
  if (!device.services.may_call_driver() || std::none_of(homes_.begin(), homes_.end(), has_left)) return;
  const bool may_ask = is_new && std::count_if(homes_.begin(), homes_.end(), [](const auto& home) { return home->context != nullptr; }) == 1;
  for (std::size_t by = 0; by < homes_.size(); ++by) {  // by index: the list may grow while the lock is let go of
    ContextPool& living = *homes_[by];
    const PinnedContext pinned(device.services.contexts, &living, living.context);
    if (!pinned || !can_be_asked(device, living.context)) continue;
    if (may_ask)
      for (const auto& home : homes_) home->natives.ask_for_left(device, living);
    for (std::size_t i = 0; i < homes_.size(); ++i)
      if (homes_[i]->natives.has_left()) homes_[i]->natives.free_left(device, living);
    return;
  }
}

}  // namespace cupool::device
