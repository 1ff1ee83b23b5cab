// The phases of a process, and whether a hook may serve in this one.
//
//   cold ──first hook after cuInit──> live ──exit()──> exiting          aside: off, privileged, or a driver too old
// The word lies in a page that the kernel wipes in a forked child (MADV_WIPEONFORK), so that every kind of fork of a
// live process reads as `wiped` there, with or without atfork handlers; a fork of a cold process starts cold.
// Never: a lock that a child could inherit held; a CUDA call once exiting. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace cupool::shim::lifecycle {

enum class Phase : std::uint32_t { wiped = 0, cold = 1, starting = 2, live = 3, aside = 4, exiting = 5 };

/// Where the current phase is stored. Never null.
extern std::atomic<std::atomic<std::uint32_t>*> phase_word;

inline Phase phase() { return static_cast<Phase>(phase_word.load(std::memory_order_acquire)->load(std::memory_order_acquire) & 0xffU); }

/// Cold → live when the driver is there, initialised and new enough. True when live on return.
/// Calls the driver; the caller holds the thread's Inside guard.
bool go_live();

/// True when hooks serve now; the first call of a process that has called cuInit makes it live.
inline bool may_serve() {
  const Phase now = phase();
  return now == Phase::live || ((now == Phase::cold || now == Phase::starting) && go_live());
}

/// Live → exiting: from now on no CUDA call of ours. True when this process was live (or is exiting already); false in
/// every other, which must then do nothing.
bool begin_exit();

/// The calling thread ends the process by _exit, natively by which all other threads stop wherever they are. From here on they cannot be served, and
/// a failed call could make one of them end the process in another way; so they get no answer any more (stop_if_ended).
void end_other_threads();

/// Does not return in a thread that end_other_threads() has stopped. Called with no lock held.
void stop_if_ended();

/// True in the process that went live, false in children of any kind that share or copied its memory.
bool is_own_process();

/// True while this thread runs a hook, so that calls which the driver makes back into us pass through. Trivially destructible, because libraries free
/// memory after our destructors have run.
inline thread_local bool t_inside = false;

/// Sets t_inside for a scope.
class Inside {
 public:
  Inside() { t_inside = true; }
  ~Inside() { t_inside = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

}  // namespace cupool::shim::lifecycle
