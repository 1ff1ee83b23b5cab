// ContextRegistry: see context_registry.hpp. Contexts are few (usually one per device), so a vector is searched.
#include "pool/device/context_registry.hpp"

#include <algorithm>
#include <new>

#include "pool/device/context_pool.hpp"

namespace cupool::device {

ContextPool* ContextRegistry::find(CUcontext context) {
  const MutexLock lock(mutex_);
  for (ContextPool* home : homes_)
    if (home->registered.context == context) return home;
  return nullptr;
}

std::uint64_t ContextRegistry::life_of(const ContextPool& home, CUcontext context) {
  const MutexLock lock(mutex_);
  return home.registered.context == context ? home.registered.life : 0;
}

void ContextRegistry::add(ContextPool* home, CUcontext context) {
  const MutexLock lock(mutex_);
  homes_.push_back(home);
  home->registered.context = context;
  home->registered.ending = false;
  ++home->registered.life;
}

Pin ContextRegistry::pin(ContextPool* home, std::uint64_t life) {
  const MutexLock lock(mutex_);
  if (home->registered.life != life || home->registered.context == nullptr) return Pin::gone;
  return pin_unless_ending(home);
}

Pin ContextRegistry::pin(ContextPool* home, CUcontext context) {
  const MutexLock lock(mutex_);
  if (home->registered.context != context) return Pin::gone;
  return pin_unless_ending(home);
}

Pin ContextRegistry::pin_unless_ending(ContextPool* home) {
  if (home->registered.ending) return Pin::ending;
  ++home->registered.pins;
  return Pin::held;
}

bool ContextRegistry::is_empty() {
  const MutexLock lock(mutex_);
  return homes_.empty();
}

void ContextRegistry::unpin(ContextPool* home) {
  const MutexLock lock(mutex_);
  --home->registered.pins;
}

namespace {
bool has_room(std::vector<FencePoint>& points, std::size_t count) noexcept {
  try {
    points.reserve(count);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}
}  // namespace

bool ContextRegistry::is_wanted(const ContextPool& home, const DeviceState* only, CUcontext also) {
  return only == nullptr || &home.device == only || (also != nullptr && home.registered.context == also);
}

bool ContextRegistry::pin_all(std::vector<FencePoint>& points, const DeviceState* only, CUcontext also, Ending ending) noexcept {
  const MutexLock lock(mutex_);
  points.clear();
  for (const ContextPool* home : homes_)
    if (ending == Ending::refused && is_wanted(*home, only, also) && home->registered.ending) return false;
  if (!has_room(points, homes_.size())) return false;
  for (ContextPool* home : homes_)
    if (is_wanted(*home, only, also) && !home->registered.ending) points.push_back(pinned_point(home));
  return true;
}

bool ContextRegistry::has_ending(const DeviceState* only, CUcontext also) {
  const MutexLock lock(mutex_);
  return std::any_of(homes_.begin(), homes_.end(), [&](const ContextPool* home) { return is_wanted(*home, only, also) && home->registered.ending; });
}

bool ContextRegistry::pin_one(ContextPool* home, CUcontext context, std::vector<FencePoint>& points) noexcept {
  const MutexLock lock(mutex_);
  points.clear();
  if (home->registered.context != context || home->registered.ending || !has_room(points, 1)) return false;
  points.push_back(pinned_point(home));
  return true;
}

/// Pins `home`, and takes one of its idle events, if there is one.
FencePoint ContextRegistry::pinned_point(ContextPool* home) {
  ContextPool::Registered& registered = home->registered;
  ++registered.pins;
  CUevent event = nullptr;
  if (!registered.idle_events.empty()) {
    event = registered.idle_events.back();
    registered.idle_events.pop_back();
  }
  return {home, registered.life, event, false};
}

void ContextRegistry::unpin_all(const std::vector<FencePoint>& points) {
  const MutexLock lock(mutex_);
  for (const FencePoint& point : points) --point.home->registered.pins;
}

bool ContextRegistry::has_others(const DeviceState& device) {
  const MutexLock lock(mutex_);
  return std::any_of(homes_.begin(), homes_.end(), [&device](const ContextPool* home) { return &home->device != &device; });
}

bool ContextRegistry::is_only(const ContextPool* home) {
  const MutexLock lock(mutex_);
  return homes_.size() == 1 && homes_.front() == home;
}

void ContextRegistry::unpin(FencePoint& point) {
  const MutexLock lock(mutex_);
  --point.home->registered.pins;
  if (point.done) keep_event(point);
}

void ContextRegistry::unpin_all(const std::vector<FencePoint>& pinned, std::vector<FencePoint>& asked) {
  const MutexLock lock(mutex_);
  for (const FencePoint& point : pinned) --point.home->registered.pins;
  for (FencePoint& point : asked)
    if (point.done) keep_event(point);
}

void ContextRegistry::give_back(FencePoint& point) {
  if (point.event == nullptr) return;
  const MutexLock lock(mutex_);
  keep_event(point);
}

void ContextRegistry::keep_event(FencePoint& point) noexcept {
  if (point.event == nullptr) return;
  ContextPool::Registered& registered = point.home->registered;
  try {
    if (registered.life == point.life && registered.context != nullptr) registered.idle_events.push_back(point.event);
  } catch (const std::bad_alloc&) {
    // Host memory is out: the event is not used again, and is freed with its context.
  }
  point.event = nullptr;
}

Pin ContextRegistry::begin_end(ContextPool* home, CUcontext context) {
  const MutexLock lock(mutex_);
  if (home->registered.context != context) return Pin::gone;
  if (home->registered.ending) return Pin::ending;
  home->registered.ending = true;
  return Pin::held;
}

bool ContextRegistry::is_pinned(ContextPool* home) {
  const MutexLock lock(mutex_);
  return home->registered.pins != 0;
}

bool ContextRegistry::is_ending(CUcontext context) {
  const MutexLock lock(mutex_);
  return std::any_of(homes_.begin(), homes_.end(),
                     [context](const ContextPool* home) { return home->registered.context == context && home->registered.ending; });
}

void ContextRegistry::finish_end(ContextPool* home, bool gone) {
  const MutexLock lock(mutex_);
  home->registered.ending = false;
  if (!gone) return;
  home->registered.context = nullptr;
  home->registered.idle_events.clear();  // the context took its events along
  homes_.erase(std::find(homes_.begin(), homes_.end(), home));
}

}  // namespace cupool::device
