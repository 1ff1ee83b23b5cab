// Blocks of memory pools whose context was destroyed: natively they are no context's, and the program may use and free them (CUDA Driver API 13.0,
// cuCtxDestroy). What they lie in is an orphan (ContextPool): nothing is allocated there any more, and what gets empty goes back to the driver.
#include <algorithm>
#include <limits>
#include <new>

#include "pool/device/device_pool.hpp"

namespace cupool::device {

namespace {
constexpr std::uint64_t kAllThatIsEmpty = std::numeric_limits<std::uint64_t>::max();

/// Of a heap without blocks.
struct NothingLost final : DeviceAllocator::LossVisitor {
  void lost(heap::Extent&) override {}
  void stays(heap::Extent&) override {}
};
}  // namespace

/// What is empty in orphans goes back to the driver; `again`: also what that has refused before. Returns bytes.
std::uint64_t DevicePool::empty_orphans(bool again) {
  std::uint64_t released_bytes = 0;
  for (std::size_t i = 0; i < homes_.size() && may_call_driver(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    if (!home.is_orphan || home.is_emptying) continue;  // who empties it looks again
    if (again && home.pooled->figures(device_).wholly_free_bytes != 0) home.must_empty = true;
    Mover mover(moves_);
    home.is_emptying = true;
    std::uint64_t bytes = 0;
    while (home.is_orphan && home.must_empty && may_call_driver()) bytes += empty_orphan(home);
    home.is_emptying = false;
    mover.note_given_back(device_, bytes);
    released_bytes += bytes;
  }
  if (released_bytes != 0) figures_.publish(device_);
  return released_bytes;
}

std::uint64_t DevicePool::empty_orphan(ContextPool& home) {
  home.must_empty = false;
  if (home.pooled->holds_blocks()) {
    try {
      return home.pooled->release(device_, home, kAllThatIsEmpty, false);
    } catch (const std::bad_alloc&) {  // when the next block goes, then
      return 0;
    }
  }
  const std::uint64_t bytes = home.pooled->figures(device_).region_bytes;
  NothingLost nothing;
  home.pooled->abandon(device_, nothing);
  home.pooled->bury(device_);
  home.is_orphan = false;
  if (home.burials == 0) home.pooled.reset();  // the next context may have another kind
  return bytes;
}

/// Access to a device's memory pools is access to what has outlived its context too.
Status DevicePool::share_orphans(int ordinal) {
  Status shared;
  for (std::size_t i = 0; i < homes_.size() && shared.ok(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    if (!home.is_orphan || home.is_emptying) continue;
    home.is_emptying = true;
    shared = home.pooled->share(device_, ordinal);
    home.is_emptying = false;
  }
  empty_orphans();
  return shared;
}

/// In the driver's pool, where a context that is no more has left it.
bool DevicePool::is_left(std::uint64_t address) const {
  return std::any_of(homes_.begin(), homes_.end(), [address](const auto& home) { return home->natives.is_left(address); });
}

/// Under `async` plain blocks lie in the driver's pool, which cuCtxDestroy leaves: natively they had gone with their context. Nobody can give them back
/// before another context of the device lives. What may have gone with a primary context, the driver is asked about when a context is new and alone: another
/// thread could else have been given an address between the answer and what is done with it.
void DevicePool::give_left(bool is_new) {
  const auto has_left = [](const auto& home) { return home->natives.has_left(); };
  if (!may_call_driver() || std::none_of(homes_.begin(), homes_.end(), has_left)) return;
  const bool may_ask = is_new && std::count_if(homes_.begin(), homes_.end(), [](const auto& home) { return home->context != nullptr; }) == 1;
  for (std::size_t by = 0; by < homes_.size(); ++by) {  // by index: the list may grow while the lock is let go of
    ContextPool& living = *homes_[by];
    const CUcontext context = living.context;
    if (context == nullptr || device_.services.contexts.pin(&living, context) != Pin::held) continue;
    const Unpinner unpinner(device_.services.contexts, &living);
    for (std::size_t i = 0; i < homes_.size(); ++i)
      if (homes_[i]->natives.has_left()) homes_[i]->natives.give_left(device_, living, may_ask);
    return;
  }
}

}  // namespace cupool::device
