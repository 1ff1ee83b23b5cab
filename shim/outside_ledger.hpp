// What the shim must remember of the program's own calls to book them right: whose primary context is which, which
// contexts are a primary's green ones, and when memory of the program's own cuMemCreate is really gone.
//
// Small maps behind one lock each, never held across a driver call. Thread-safe. Never calls the driver.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "pool/device/block_life.hpp"
#include "pool/observe/live_page.hpp"
#include "shim/array_parts.hpp"

namespace cupool::shim {

struct ContextFacts {
  CUcontext owner = nullptr;
  bool has_ended = false;
};
/// What the book told a thread last: of `context`, when its version was `version` (0: nothing).
struct KnownContext {
  std::uint64_t version = 0;
  CUcontext context = nullptr;
  ContextFacts facts;
};
inline constinit thread_local KnownContext t_known_context{};

class ContextBook {
 public:
  void set_primary(int device, CUcontext context);
  CUcontext primary(int device) const;  ///< nullptr: not seen
  /// Of memory of pools that is allocated on streams of `context`, which owns memory. A primary that was not seen is taken for one that cuCtxDestroy
  /// may end.
  BlockLife life_in(CUcontext context, int device) const { return primary(device) == context ? BlockLife::context : BlockLife::pool; }
  /// Held around each call of the program that may begin or end the primary context of `device`, the driver's part included: what such a call
  /// found afterwards would else be another thread's context of the same handle. Natively the driver lets them wait for each other too.
  [[nodiscard]] std::unique_lock<std::mutex> primary_turn(int device);

  /// References that the program took and gave back here; those taken past us only add to them. Under the device's turn.
  void primary_retained(int device) noexcept { count_of(device) += is_counted(device) ? 1 : 0; }
  void primary_released(int device) noexcept { count_of(device) -= count_of(device) != 0 ? 1 : 0; }
  void primary_reset(int device) noexcept { count_of(device) = 0; }  ///< [?] how many are left then: as if none
  /// Surely it outlives the end of what holds a reference besides: a green context.
  bool primary_is_retained(int device) noexcept { return count_of(device) != 0; }
  /// Surely it outlives one release.
  bool primary_has_others(int device) noexcept { return count_of(device) > 1; }

  using Greens = std::map<CUgreenCtx, int>;
  /// Memory for one more green context: with it set_green() needs none. Throws std::bad_alloc.
  static Greens::node_type place_for_green();
  void set_green(CUgreenCtx green, int device, Greens::node_type place) noexcept;
  std::optional<int> green_device(CUgreenCtx green) const;
  std::vector<CUgreenCtx> greens_of(int device) const;
  /// `green` is destroyed, and with it the context that stood for it; not one of another device that has the handle since.
  void forget_green(CUgreenCtx green, int device);

  /// `context` is `primary` with a green context's resources: memory belongs to the primary (cuCtxFromGreenCtx, 12.4).
  void set_alias(CUcontext context, CUcontext primary, CUgreenCtx green);
  /// The context that owns what is allocated under `context`.
  CUcontext owner(CUcontext context) const { return facts_of(context).owner; }
  bool has_aliases() const { return has_alias_.load(std::memory_order_acquire); }

  void lives(CUcontext context);
  void ended(CUcontext context);  ///< and with a primary the contexts that stand for its green ones
  /// `context` has ended and was not seen again since; it may still be current in threads that did not end it.
  bool has_ended(CUcontext context) const { return facts_of(context).has_ended; }

 private:
  static bool is_counted(int device) { return device >= 0 && device < kMostCounted; }
  std::uint32_t& count_of(int device) { return references_[static_cast<std::size_t>(is_counted(device) ? device : kMostCounted)]; }

  /// One load while no context has ended and no green one stands for its primary; then without a lock too, where the thread asked last about this
  /// context and nothing has changed since.
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
  std::array<std::uint32_t, kMostCounted + 1> references_{};  ///< the last: of devices that are not counted, always 0
  std::array<std::mutex, 16> primary_turns_;                  ///< devices share them when there are more
  Greens greens_;
  std::unordered_map<CUcontext, CUcontext> aliases_;
  std::unordered_map<CUgreenCtx, CUcontext> green_contexts_;
  std::atomic<bool> has_alias_{false};
  std::unordered_set<CUcontext> ended_;
  std::atomic<bool> has_facts_{false};     ///< aliases_ or ended_ hold anything
  std::atomic<std::uint64_t> version_{0};  ///< changes with aliases_ and ended_, under the mutex; another book's are others
  static inline std::atomic<std::uint64_t> last_version_{0};
};

/// Physical memory of the program's cuMemCreate: held by the references of its handle and by its mappings, at addresses and in sparse arrays, and
/// gone when both are (cuMemRelease alone does not free what is mapped). Each memory gets a key of its own, because the driver may use a handle's
/// value again while the old memory is still mapped.
class VmmLedger {
 public:
  using Handle = CUmemGenericAllocationHandle;

  std::uint64_t created(Handle handle);  ///< the key
  /// By cuMemRetainAllocationHandle of `address`.
  void retained(Handle handle, CUdeviceptr address);
  void mapped(Handle handle, CUdeviceptr address, std::size_t bytes);
  struct Released {
    std::uint64_t key = 0;  ///< 0: not ours to count
    bool is_gone = false;   ///< with it the memory
  };
  /// Before the driver is called, which may give the handle's value to another thread at once.
  Released released(Handle handle);
  void not_released(Handle handle, const Released& what);                       ///< the driver has refused
  std::vector<std::uint64_t> unmapped(CUdeviceptr address, std::size_t bytes);  ///< the keys of what is gone

  using Arrays = std::multimap<const void*, ArrayParts>;  ///< by handle
  /// The driver has made an array into which memory may be mapped.
  void array_made(const void* array, bool is_whole, CUcontext context);
  /// The driver has mapped memory into an array, or unmapped some. `context`: the array's, where it was not seen made. The keys of what is gone.
  std::vector<std::uint64_t> changed(const CUarrayMapInfo& change, CUcontext context);
  /// The array is about to be destroyed: what is mapped into it; for not_destroyed() or, until it is 0, next_gone(). Needs no memory.
  Arrays::node_type take_array(const void* array) noexcept;
  void not_destroyed(Arrays::node_type parts) noexcept;
  std::uint64_t next_gone(Arrays::node_type& parts) noexcept;  ///< a key
  /// The arrays of `context` are gone. Needs no memory. Then next_gone() of all such contexts, until it is 0.
  void context_ended(CUcontext context) noexcept;
  std::uint64_t next_gone() noexcept;

 private:
  struct Physical {
    std::size_t references = 0;
    std::size_t mappings = 0;
  };
  struct Mapping {
    std::size_t bytes = 0;
    std::uint64_t key = 0;
  };

  std::uint64_t key_of(Handle handle) const;  ///< 0: imported, host, or not ours to count
  bool loses_mapping(std::uint64_t key);      ///< with it the memory is gone

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Physical> physical_;  ///< by key
  std::unordered_map<Handle, std::uint64_t> by_handle_;   ///< -> key, while the handle has references
  std::map<CUdeviceptr, Mapping> by_address_;
  Arrays arrays_;
  Arrays ended_;  ///< arrays of contexts that have ended
  std::uint64_t next_key_ = 1;
};

}  // namespace cupool::shim
