// Exactly one report, whoever ends the process and from whichever thread.
//
// `exit` and `_exit` may be called where no report can be written safely: in a signal handler that interrupted malloc. A watchdog
// thread (raw clone, no thread-local storage, two system calls) then ends the process with the same status after a
// bound; for `_exit` on an alternate signal stack nothing is attempted, and the live page stays for `cupool run`.
#include "shim/exit.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>

#include "shim/lifecycle.hpp"
#include "shim/process.hpp"
#include "shim/real_driver.hpp"
#include "shim/unnoticed.hpp"

extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...);  // libc's clone, by a name that no interposer has

namespace cupool::shim::exit_hooks {
namespace {

using ExitFunction = void (*)(int);

constexpr int kStatusBits = 0xFF;  ///< the part of exit()'s argument that the parent is told (POSIX)
constexpr long kWatchdog_s = 8;    ///< above the reporter's own budgets
constexpr timespec kPollInterval{0, 1'000'000};

constinit std::atomic<ExitFunction> g_next_exit{nullptr};
constinit std::atomic<ExitFunction> g_next_quick_exit{nullptr};
constinit std::atomic<pid_t> g_finisher{0};  ///< the thread that writes the report
constinit std::atomic<bool> g_is_finished{false};
constinit std::atomic<int> g_exit_code{-1};
constinit std::atomic<int> g_quick_exit_code{-1};

/// Our exit handler. Those that were registered later have run by now and may have called CUDA; from here on we make no CUDA call.
void note_exit(int code, void*) {
  if (!lifecycle::begin_exit()) return;
  g_exit_code.store(code & kStatusBits, std::memory_order_relaxed);
  process().pools.stop_calling_driver();
}

/// Another thread is writing the report: waits until it is whole, but not without end.
void wait_for_writer() {
  for (int i = 0; i < kWatchdog_s * 1000 && !g_is_finished.load(std::memory_order_acquire); ++i) nanosleep(&kPollInterval, nullptr);
}

/// Blocks all signals but those of faults in this thread: a handler that ends the process would cut off the report, and natively the process would
/// have been gone by then. `before` receives the old mask, unless it is nullptr.
bool hold_signals(sigset_t* before) {
  sigset_t held;
  sigfillset(&held);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&held, fault);
  return pthread_sigmask(SIG_BLOCK, &held, before) == 0;
}

/// Writes the exit report and closes the trace, the registry of exports and the live page: once, whichever thread comes first. `code`: the exit code,
/// where it is known.
void finish(std::optional<int> code) {
  if (!lifecycle::begin_exit()) return;
  const Unnoticed unnoticed;
  const pid_t self = gettid();
  pid_t finisher = 0;
  if (!g_finisher.compare_exchange_strong(finisher, self)) {
    if (finisher != self) wait_for_writer();  // else a fault has interrupted the writing itself, and must not wait for it
    return;
  }
  Process& own = process();
  own.pools.stop_calling_driver();
  own.shared.remove_registry();
  own.page.set_state(observe::LiveState::exiting);
  own.trace.finish();
  if (own.reporter.write_exit(code)) {
    own.page.set_state(observe::LiveState::reported);
    own.page.retire();
  } else if (own.options->run_id.empty()) {
    own.page.retire();  // there is no `cupool run` that would complete the report
  }
  g_is_finished.store(true, std::memory_order_release);
}

bool is_on_alternate_stack() {
  stack_t stack{};
  return sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_ONSTACK) != 0;
}

[[noreturn]] void exit_group(int status) {
  for (;;) syscall(SYS_exit_group, status);
}

int watch(void* argument) {
  const timespec bound{kWatchdog_s, 0};
  // All signals are blocked, so that this fails only where seccomp forbids the call: then there is no bound.
  if (syscall(SYS_nanosleep, &bound, nullptr) != 0 || g_is_finished.load(std::memory_order_acquire)) syscall(SYS_exit, 0);
  exit_group(static_cast<int>(reinterpret_cast<std::intptr_t>(argument)));
}

/// Is there anything to write at the end, for which the watchdog sets a bound?
bool has_files() { return !process().report_path.empty() || !process().options->trace.empty(); }

/// Ends the process with `status` at the latest after kWatchdog_s. Without it (no memory) there is no bound.
void start_watchdog(int status) {
  if (!has_files()) return;
  constexpr std::size_t kStackBytes = 64 * 1024;
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);  // the program's handlers must not run on a thread without a TCB
  // Not by `clone`: ThreadSanitizer's own hands a local variable of the caller to the new thread, and the caller does not wait for it.
  __clone(&watch, static_cast<char*>(stack) + kStackBytes, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM,
          reinterpret_cast<void*>(static_cast<std::intptr_t>(status)));
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

/// What _exit and its kin do first: write the report, if this process owes one and this is a place where it can be written.
void finish_at_once(int status) {
  const lifecycle::Phase phase = lifecycle::phase();
  if (phase != lifecycle::Phase::live && phase != lifecycle::Phase::exiting) return;
  if (!lifecycle::is_own_process() || lifecycle::t_inside || is_on_alternate_stack()) return;
  start_watchdog(status);
  lifecycle::end_other_threads();
  hold_signals(nullptr);  // for good: nothing of the program's runs after this
  finish(status & kStatusBits);
}

/// The last handler that quick_exit runs. While the others run, they and other threads are served as ever.
void at_quick_exit_handler() {
  const int code = g_quick_exit_code.load(std::memory_order_relaxed);
  if (code >= 0) finish_at_once(code);
}

/// Looked up at load: a child that calls _exit after fork may not take the loader's lock.
[[gnu::constructor]] void find_next() {
  g_next_exit.store(reinterpret_cast<ExitFunction>(real_driver::symbol_past_ourselves("_exit")), std::memory_order_relaxed);
  g_next_quick_exit.store(reinterpret_cast<ExitFunction>(real_driver::symbol_past_ourselves("quick_exit")), std::memory_order_relaxed);
  at_quick_exit(&at_quick_exit_handler);  // before those of the program, so that it runs after them
}

/// The library's destructor, after our exit handler. A signal handler may have called exit() in the middle of malloc or under a lock of ours, where
/// writing would never end: the watchdog bounds it.
[[gnu::destructor]] void at_unload() {
  if (!lifecycle::begin_exit()) return;
  const int code = g_exit_code.load(std::memory_order_relaxed);
  if (code >= 0) start_watchdog(code);
  sigset_t before;
  const bool is_held = hold_signals(&before);
  finish(code >= 0 ? std::optional<int>(code) : std::nullopt);
  if (is_held) pthread_sigmask(SIG_SETMASK, &before, nullptr);  // the destructors of other libraries run as they would without us
}

}  // namespace

void arm() { on_exit(&note_exit, nullptr); }

[[noreturn]] void leave(int status) {
  finish_at_once(status);
  if (ExitFunction next = g_next_exit.load(std::memory_order_relaxed)) next(status);
  exit_group(status);
}

[[noreturn]] void leave_quickly(int status) {
  g_quick_exit_code.store(status & kStatusBits, std::memory_order_relaxed);
  if (ExitFunction next = g_next_quick_exit.load(std::memory_order_relaxed)) next(status);
  exit_group(status);
}

}  // namespace cupool::shim::exit_hooks

// Declared in <unistd.h> and <stdlib.h>, noreturn there.
extern "C" {
[[gnu::visibility("default")]] void _exit(int status) { cupool::shim::exit_hooks::leave(status); }
[[gnu::visibility("default")]] void _Exit(int status) noexcept { cupool::shim::exit_hooks::leave(status); }
[[gnu::visibility("default")]] void quick_exit(int status) noexcept { cupool::shim::exit_hooks::leave_quickly(status); }
}
