// ContextBook: whose primary context is which, how often the program has retained it, which contexts stand for a primary's green ones, and which
// contexts have ended. The shim must know all of it to book what the program's own calls do.
//
// Small maps behind one lock that is never held across a driver call. Never calls the driver. Thread-safe.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "pool/device/block_life.hpp"
#include "pool/observe/live_page.hpp"

namespace cupool::shim {

struct ContextFacts {
  CUcontext owner = nullptr;  ///< of what is allocated under the context: a green context's primary, else the context itself
  bool has_ended = false;
};
/// The last answer that the book gave to this thread: about `context`, when the book's version was `version` (0: no answer yet).
struct KnownContext {
  std::uint64_t version = 0;
  CUcontext context = nullptr;
  ContextFacts facts;
};
inline constinit thread_local KnownContext t_known_context{};

class ContextBook {
 public:
  void set_primary(int device, CUcontext context);
  CUcontext primary(int device) const;  ///< nullptr: the program has not retained one through us
  /// How long memory of a pool lives that is allocated on a stream of `context`: it outlives any context that cuCtxDestroy may end, and ends with a
  /// primary one. A primary context that was retained past us is taken for one of the former kind. `context` is no green one.
  BlockLife life_in(CUcontext context, int device) const { return primary(device) == context ? BlockLife::context : BlockLife::pool; }
  /// Held around each call of the program that may begin or end the primary context of `device`, the driver's part included: what such a call finds
  /// afterwards would otherwise be the context that another thread has begun meanwhile under the same handle. The driver itself makes such calls
  /// wait for each other, too.
  [[nodiscard]] std::unique_lock<std::mutex> primary_turn(int device);

  /// The references that the program took and gave back through us; there may be more, taken past us. Called with the device's turn held.
  void primary_retained(int device) noexcept { count_of(device) += is_counted(device) ? 1 : 0; }
  void primary_released(int device) noexcept { count_of(device) -= count_of(device) != 0 ? 1 : 0; }
  void primary_reset(int device) noexcept { count_of(device) = 0; }  ///< [?] how many references a reset leaves; counted as none
  /// True: the primary context certainly outlives the end of a green context, which holds a reference of its own.
  bool primary_is_retained(int device) noexcept { return count_of(device) != 0; }
  /// True: it certainly outlives one release.
  bool primary_has_others(int device) noexcept { return count_of(device) > 1; }

  using Greens = std::map<CUgreenCtx, int>;
  /// Host memory for one more entry, so that set_green() needs none and cannot fail. Throws std::bad_alloc.
  static Greens::node_type place_for_green();
  void set_green(CUgreenCtx green, int device, Greens::node_type place) noexcept;
  std::optional<int> green_device(CUgreenCtx green) const;
  std::vector<CUgreenCtx> greens_of(int device) const;
  /// `green` of `device` is destroyed, and with it the context that stood for it. A green context of another device that has got the handle since
  /// stays known.
  void forget_green(CUgreenCtx green, int device);

  /// `context` stands for `green` (cuCtxFromGreenCtx, CUDA 12.4): what is allocated under it belongs to `primary`.
  void set_alias(CUcontext context, CUcontext primary, CUgreenCtx green);
  /// The context that owns what is allocated under `context`.
  CUcontext owner(CUcontext context) const { return facts_of(context).owner; }
  bool has_aliases() const { return has_alias_.load(std::memory_order_acquire); }

  /// A context has begun under this handle: what ended under it is forgotten.
  void lives(CUcontext context);
  /// `context` has ended, and with a primary one all contexts that stand for its green ones. Throws std::bad_alloc.
  void ended(CUcontext context);
  /// `context` has ended and its handle was not seen again since. It may still be current in threads that did not end it.
  bool has_ended(CUcontext context) const { return facts_of(context).has_ended; }

 private:
  static bool is_counted(int device) { return device >= 0 && device < kMostCounted; }
  std::uint32_t& count_of(int device) { return references_[static_cast<std::size_t>(is_counted(device) ? device : kMostCounted)]; }

  /// One load while no context has ended and none stands for a green one. Otherwise, too, no lock is taken where this thread's last question was
  /// about the same context and nothing has changed since.
  ContextFacts facts_of(CUcontext context) const {
    if (!has_facts_.load(std::memory_order_acquire)) return {context, false};
    const KnownContext& known = t_known_context;
    return known.context == context && known.version == version_.load(std::memory_order_acquire) ? known.facts : look_up(context);
  }
  ContextFacts look_up(CUcontext context) const;
  void note_change();

  mutable std::mutex mutex_;
  std::unordered_map<int, CUcontext> primaries_;
  static constexpr int kMostCounted = int{observe::kMaxDevices};
  std::array<std::uint32_t, kMostCounted + 1> references_{};  ///< the last one, for devices beyond the counted ones, stays 0
  std::array<std::mutex, 16> primary_turns_;                  ///< device d takes d % 16: with more devices some share one
  Greens greens_;
  std::unordered_map<CUcontext, CUcontext> aliases_;
  std::unordered_map<CUgreenCtx, CUcontext> green_contexts_;
  std::atomic<bool> has_alias_{false};
  std::unordered_set<CUcontext> ended_;
  std::atomic<bool> has_facts_{false};     ///< aliases_ or ended_ hold anything
  std::atomic<std::uint64_t> version_{0};  ///< a new one after each change of aliases_ or ended_; no two books ever have the same
  static inline std::atomic<std::uint64_t> last_version_{0};
};

}  // namespace cupool::shim
