// See context_book.hpp.
#include "shim/context_book.hpp"

#include <utility>

namespace cupool::shim {

void ContextBook::set_primary(int device, CUcontext context) {
  const std::lock_guard lock(mutex_);
  primaries_[device] = context;
}

CUcontext ContextBook::primary(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = primaries_.find(device);
  return found != primaries_.end() ? found->second : nullptr;
}

std::unique_lock<std::mutex> ContextBook::primary_turn(int device) {
  return std::unique_lock(primary_turns_[static_cast<unsigned>(device) % primary_turns_.size()]);
}

ContextBook::Greens::node_type ContextBook::place_for_green() {
  Greens one;
  return one.extract(one.emplace(nullptr, 0).first);
}

void ContextBook::set_green(CUgreenCtx green, int device, Greens::node_type place) noexcept {
  const std::lock_guard lock(mutex_);
  greens_.erase(green);
  place.key() = green;
  place.mapped() = device;
  greens_.insert(std::move(place));
}

std::optional<int> ContextBook::green_device(CUgreenCtx green) const {
  const std::lock_guard lock(mutex_);
  const auto found = greens_.find(green);
  return found != greens_.end() ? std::optional<int>(found->second) : std::nullopt;
}

std::vector<CUgreenCtx> ContextBook::greens_of(int device) const {
  const std::lock_guard lock(mutex_);
  std::vector<CUgreenCtx> found;
  for (const auto& [green, of_device] : greens_)
    if (of_device == device) found.push_back(green);
  return found;
}

void ContextBook::forget_green(CUgreenCtx green, int device) {
  const std::lock_guard lock(mutex_);
  const auto known = greens_.find(green);
  if (known == greens_.end() || known->second != device) return;
  greens_.erase(known);
  const auto context = green_contexts_.find(green);
  if (context == green_contexts_.end()) return;
  ended_.insert(context->second);
  green_contexts_.erase(context);
  note_change();
}

void ContextBook::set_alias(CUcontext context, CUcontext primary, CUgreenCtx green) {
  if (context == primary) return;
  const std::lock_guard lock(mutex_);
  ended_.erase(context);
  green_contexts_[green] = context;
  aliases_[context] = primary;
  has_alias_.store(true, std::memory_order_release);
  note_change();
}

void ContextBook::note_change() {
  has_facts_.store(!aliases_.empty() || !ended_.empty(), std::memory_order_release);
  version_.store(last_version_.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_release);
}

ContextFacts ContextBook::look_up(CUcontext context) const {
  const std::lock_guard lock(mutex_);
  const auto alias = aliases_.find(context);
  const CUcontext owner = alias != aliases_.end() ? alias->second : context;
  const ContextFacts facts{owner, ended_.contains(context) || ended_.contains(owner)};
  t_known_context = {version_.load(std::memory_order_relaxed), context, facts};
  return facts;
}

void ContextBook::lives(CUcontext context) {
  if (!has_facts_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  aliases_.erase(context);  // a green context that has ended had this handle
  ended_.erase(context);
  note_change();
}

void ContextBook::ended(CUcontext context) {
  const std::lock_guard lock(mutex_);
  ended_.insert(context);
  for (const auto& [view, primary] : aliases_)
    if (primary == context) ended_.insert(view);
  note_change();
}

}  // namespace cupool::shim
