// ContextRegistry: which contexts live, and who is using them right now.
//
// A driver call on a context's memory, streams or events is made only while the context is pinned; a context is ended only when nobody has it pinned,
// and from then on it cannot be pinned. A context's `life`, a number, tells it from the next one with the same handle (a primary context after a
// reset). Every context of the process is in here, whether it allocates or not: work in any of them may touch any block (peer copies need no peer
// access). Thread-safe; a leaf lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "pool/core/mutex.hpp"

namespace cupool::device {

struct ContextPool;
struct DeviceState;

/// The part of a Fence in one context: an event, and whether the work before it is over.
struct FencePoint {
  ContextPool* home = nullptr;
  std::uint64_t life = 0;
  CUevent event = nullptr;
  bool done = false;          ///< the work is over
  std::uint8_t refusals = 0;  ///< how many questions in a row the driver has answered by an error, up to kRefused
  static constexpr std::uint8_t kRefused = 8;
};

enum class Pin : std::uint8_t {
  held,    ///< pinned: unpin it
  ending,  ///< somebody is ending the context right now
  gone,    ///< the context has ended
};

class ContextRegistry {
 public:
  /// The pool of a living (or ending) context, or nullptr.
  ContextPool* find(CUcontext context);
  /// The life in which `home` is the pool of `context`; 0: it is not.
  std::uint64_t life_of(const ContextPool& home, CUcontext context);
  /// From now on `home` is the pool of the living context `context`. Throws std::bad_alloc with nothing changed.
  void add(ContextPool* home, CUcontext context);

  /// Pins `home` if its context still is the one of that `life`.
  Pin pin(ContextPool* home, std::uint64_t life);
  /// Pins `home` if `context` is its context now.
  Pin pin(ContextPool* home, CUcontext context);
  void unpin(ContextPool* home);

  enum class Ending : std::uint8_t { refused, left_out };
  /// Pins every context (with `only`: every one of that device, and `also`), and fills `points` with a point for each, with an idle event or null.
  /// False, with nothing pinned, where host memory is out, or while one of them is ending; with Ending::left_out those get no point instead.
  bool pin_all(std::vector<FencePoint>& points, const DeviceState* only = nullptr, CUcontext also = nullptr,
               Ending ending = Ending::refused) noexcept;
  /// Is one of those contexts ending?
  bool has_ending(const DeviceState* only = nullptr, CUcontext also = nullptr);
  /// pin_all() for one context. False also when `home` is not (or no longer) its pool.
  bool pin_one(ContextPool* home, CUcontext context, std::vector<FencePoint>& points) noexcept;
  void unpin_all(const std::vector<FencePoint>& points);
  /// Unpins the point's context; gives its event back if the point is done.
  void unpin(FencePoint& point);
  /// Unpins the contexts of `pinned`, and gives back the events of those points of `asked` that are done.
  void unpin_all(const std::vector<FencePoint>& pinned, std::vector<FencePoint>& asked);
  /// Does a context of another device live?
  bool has_others(const DeviceState& device);
  /// Is `home` the only one that lives?
  bool is_only(const ContextPool* home);
  /// Does none live?
  bool is_empty();
  /// Takes the point's event, to be recorded again; where its context has ended the event is gone with it.
  void give_back(FencePoint& point);

  /// Begins the end of a context. `held`: from now on nobody can pin `home`, until finish_end(). `ending`: another thread is ending it. `gone`:
  /// `context` is not its context.
  Pin begin_end(ContextPool* home, CUcontext context);
  bool is_pinned(ContextPool* home);
  bool is_ending(CUcontext context);
  /// The context has ended (`gone`) and is forgotten, or has survived.
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
