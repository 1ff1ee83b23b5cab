// Hooked<>: what every entry point does around its body. The only clever code of the shim.
//
// The order, and why: (1) find the real function, so that there is an answer whatever happens; (2) lookups are answered in any phase, and waits are
// the driver's own calls, followed by a look at the pool; (3) may this thread be served now? If it is re-entered, or the process is cold, aside,
// exiting or forked, the call passes; (4) run the body under the guard, then, with no lock held, what the trace and requests from outside need;
// (5) an exception of ours becomes the real driver's answer and never reaches the program. Thread cancellation waits until we are done (Uncancelled;
// of quick roles only in their slow paths). A pooled address is kept from the driver on every way out (Role::free).
#pragma once

#include <type_traits>

#include "pool/core/uncancelled.hpp"
#include "shim/entry_points.hpp"
#include "shim/front_door.hpp"
#include "shim/front_door_graphs.hpp"
#include "shim/lifecycle.hpp"
#include "shim/real_driver.hpp"

namespace cupool::shim {

/// One row's Signature, kRole and run(real, args...), generated in hooks.cpp.
template <Entry E> struct Body;

template <Entry E, class Signature = typename Body<E>::Signature> struct Hooked;

template <Entry E, class... Args> struct Hooked<E, CUresult(Args...)> {
  static CUresult call(Args... args) {
    constexpr const EntryPoint& kRow = kEntryPoints[static_cast<std::size_t>(E)];
    void* function = real_driver::function(E);
    if (function == nullptr) [[unlikely]] {
      if (!real_driver::bind(true) || (function = real_driver::function(E)) == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    }
    const Real<CUresult(Args...)> real(reinterpret_cast<CUresult (*)(Args...)>(function), kRow.symbol, kRow.is_per_thread);
    if constexpr (Body<E>::kRole == Role::lookup) {
      return Body<E>::run(real, args...);
    } else if constexpr (Body<E>::kRole == Role::wait) {
      return wait(real, args...);
    } else {
      return serve(real, args...);
    }
  }

 private:
  static constexpr bool kIsQuick = Body<E>::kRole == Role::take || Body<E>::kRole == Role::free;
  struct NoCare {};  ///< in the place of Uncancelled

  static CUresult serve(const Real<CUresult(Args...)>& real, Args... args) {
    if constexpr (Body<E>::kRole == Role::copy || Body<E>::kRole == Role::read) {
      if (!front_door::g_copies_are_watched.load(std::memory_order_relaxed)) [[likely]]
        return Body<E>::kRole == Role::read ? wait(real, args...) : real.call_plainly(args...);
    }
    if (!lifecycle::t_inside) [[likely]] {
      const lifecycle::Inside guard;
      [[maybe_unused]] std::conditional_t<kIsQuick, NoCare, Uncancelled> uncancelled;
      try {
        if (lifecycle::may_serve()) [[likely]] {
          const CUresult result = Body<E>::run(real, args...);
          if constexpr (Body<E>::kRole == Role::read) {
            if (result == CUDA_SUCCESS) front_door::after_wait();
          }
          process().upkeep();
          if (result != CUDA_SUCCESS) [[unlikely]]
            lifecycle::stop_if_ended();
          return result;
        }
      } catch (...) {
        if (real.was_called()) return real.result();
      }
    }
    return pass(real, args...);
  }

  /// The program's own call, with nothing of ours around it but a note of what it will have covered; then the pool looks at what is over.
  static CUresult wait(const Real<CUresult(Args...)>& real, Args... args) {
    front_door::WaitBegun begun;
    if constexpr (Body<E>::kRole == Role::wait) {
      if (!lifecycle::t_inside && lifecycle::phase() == lifecycle::Phase::live) begun = front_door::before_wait(front_door::awaited_by(args...));
    }
    const CUresult result = real.call_plainly(args...);
    if (result != CUDA_SUCCESS || lifecycle::t_inside || lifecycle::phase() != lifecycle::Phase::live) return result;
    const lifecycle::Inside guard;
    try {
      front_door::after_wait(begun);
      process().upkeep();
    } catch (...) {  // the program has its answer already
    }
    return result;
  }

  static CUresult pass(const Real<CUresult(Args...)>& real, Args... args) {
    if (!lifecycle::t_inside) lifecycle::stop_if_ended();
    if constexpr (Body<E>::kRole == Role::free) {
      if (front_door::keep_from_driver(args...)) return CUDA_SUCCESS;
    }
    return real.call_plainly(args...);
  }
};

}  // namespace cupool::shim
