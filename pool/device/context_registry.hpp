// ContextRegistry: which contexts live, and who is using them right now.
//
// A driver call on a context's memory, streams or events is made only while the context is pinned; a context ends only
// when nobody has it pinned, and from then on it cannot be pinned. `life` tells one context from the next that gets
// the same handle (a primary context after a reset). Every context of the process is in here, pooled from or not: work
// in any of them may touch any block (peer copies need no peer access).
// Thread-safe; a leaf lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "pool/core/mutex.hpp"

namespace cupool::device {

struct ContextPool;
struct DeviceState;

/// One context at one moment of a fence. `done`: its work of then is over.
struct FencePoint {
  ContextPool* home = nullptr;
  std::uint64_t life = 0;
  CUevent event = nullptr;
  bool done = false;
  std::uint8_t refusals = 0;  ///< questions in a row, up to kRefused, that the driver answered by an error
  static constexpr std::uint8_t kRefused = 8;
};

enum class Pin : std::uint8_t {
  held,    ///< pinned: unpin it
  ending,  ///< somebody is ending the context right now
  gone,    ///< that life is over
};

class ContextRegistry {
 public:
  /// The pool of a living (or ending) context, or nullptr.
  ContextPool* find(CUcontext context);
  /// `home` lives from now on, as the pool of `context`. Throws std::bad_alloc with nothing changed.
  void add(ContextPool* home, CUcontext context);

  /// Pins `home` if it still is what it was at `life`.
  Pin pin(ContextPool* home, std::uint64_t life);
  /// Pins `home` if `context` is its context now.
  Pin pin(ContextPool* home, CUcontext context);
  void unpin(ContextPool* home);

  enum class Ending : std::uint8_t { refused, left_out };
  /// Pins every context (`only`: every one of that device, and `also`) and gives each a point with an idle event or null. False, with
  /// nothing pinned, while one of them is ending (`left_out`: those are without a point, and nothing is said), or where host memory is out.
  bool pin_all(std::vector<FencePoint>& points, const DeviceState* only = nullptr, CUcontext also = nullptr,
               Ending ending = Ending::refused) noexcept;
  /// Is one of the same contexts ending?
  bool has_ending(const DeviceState* only = nullptr, CUcontext also = nullptr);
  /// The same for one context: false also when `home` is not (or no longer) its pool.
  bool pin_one(ContextPool* home, CUcontext context, std::vector<FencePoint>& points) noexcept;
  void unpin_all(const std::vector<FencePoint>& points);
  /// Unpins the point's context. Is the point done, its event may be recorded again.
  void unpin(FencePoint& point);
  /// unpin_all() of `pinned`, and give_back() for each point of `asked` that is done.
  void unpin_all(const std::vector<FencePoint>& pinned, std::vector<FencePoint>& asked);
  /// True when a context of another device lives.
  bool has_others(const DeviceState& device);
  /// True when `home` is the only one that lives.
  bool is_only(const ContextPool* home);
  /// The event may be recorded again; forgotten when its context's life is over.
  void give_back(FencePoint& point);

  /// `held`: nobody can pin `home` any more, until finish_end(). `ending`: somebody else is ending it. `gone`: `context` is not its context.
  Pin begin_end(ContextPool* home, CUcontext context);
  bool is_pinned(ContextPool* home);
  bool is_ending(CUcontext context);
  /// The context is gone (forget it) or survived.
  void finish_end(ContextPool* home, bool gone);

 private:
  static bool is_wanted(const ContextPool& home, const DeviceState* only, CUcontext also);
  static Pin pin_unless_ending(ContextPool* home);
  FencePoint pinned_point(ContextPool* home) CUPOOL_REQUIRES(mutex_);
  void keep_event(FencePoint& point) noexcept CUPOOL_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<ContextPool*> homes_ CUPOOL_GUARDED_BY(mutex_);
};

/// Keeps a context pinned for a scope. False, with nothing pinned: `home` is not (or no longer) the pool of `context`, or that is ending.
class PinnedContext {
 public:
  /// `context` null: nothing is pinned.
  PinnedContext(ContextRegistry& contexts, ContextPool* home, CUcontext context)
      : contexts_(contexts), home_(context != nullptr && contexts.pin(home, context) == Pin::held ? home : nullptr) {}
  ~PinnedContext() {
    if (home_ != nullptr) contexts_.unpin(home_);
  }
  PinnedContext(const PinnedContext&) = delete;
  PinnedContext& operator=(const PinnedContext&) = delete;
  explicit operator bool() const { return home_ != nullptr; }

 private:
  ContextRegistry& contexts_;
  ContextPool* const home_;
};

/// Unpins at the end of a scope, however it ends, what was pinned before.
class Unpinner {
 public:
  Unpinner(ContextRegistry& contexts, ContextPool* home) : contexts_(contexts), home_(home) {}
  ~Unpinner() { contexts_.unpin(home_); }
  Unpinner(const Unpinner&) = delete;
  Unpinner& operator=(const Unpinner&) = delete;

 private:
  ContextRegistry& contexts_;
  ContextPool* home_;
};

}  // namespace cupool::device
