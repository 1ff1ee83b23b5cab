// How a process becomes live, and what fork does to it. How it ends stands in exit.cpp.
#include "shim/lifecycle.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <memory>

#include "shim/exit.hpp"
#include "shim/log.hpp"
#include "shim/process.hpp"
#include "shim/real_driver.hpp"
#include "shim/symbol_lookup.hpp"
#include "shim/unnoticed.hpp"

namespace cupool::shim::lifecycle {
namespace {

constexpr std::uint32_t value_of(Phase phase) { return static_cast<std::uint32_t>(phase); }

/// While starting, the word also holds the pid of the starting process: a child that is forked in that moment must not wait for a thread it lacks.
constexpr unsigned kPidShift = 8;
constexpr std::uint32_t kPhaseMask = (1U << kPidShift) - 1;
std::uint32_t starting_word() { return value_of(Phase::starting) | (static_cast<std::uint32_t>(getpid()) << kPidShift); }

constinit std::atomic<std::uint32_t> g_initial_word{value_of(Phase::cold)};
constinit std::atomic<pid_t> g_live_pid{0};
constinit std::atomic<pid_t> g_ending_thread{0};

/// A word in a page that a forked child finds zeroed (Linux 4.14). Where there is none, the atfork handler has to do.
std::atomic<std::uint32_t>* make_wiped_word() {
  const long page_bytes = sysconf(_SC_PAGESIZE);
  void* page = mmap(nullptr, static_cast<std::size_t>(page_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return &g_initial_word;
  madvise(page, static_cast<std::size_t>(page_bytes), MADV_WIPEONFORK);
  return new (page) std::atomic<std::uint32_t>(value_of(Phase::wiped));
}

constexpr int kYields = 1000;
constexpr timespec kPause{0, 100'000};
constexpr int kMostPauses = kYields + 100'000;  ///< at least ten seconds

void mark_child() { phase_word.load(std::memory_order_relaxed)->store(value_of(Phase::wiped), std::memory_order_relaxed); }

bool driver_is_initialised(const DriverApi& api) {
  int device_count = 0;
  return api.cuDeviceGetCount != nullptr && api.cuDeviceGetCount(&device_count) == CUDA_SUCCESS && device_count > 0;
}

std::string text_of_version(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

/// Why this library cannot serve on this driver, or an empty string.
std::string unfit(const DriverApi& api, const std::string& missing, int* version) {
  if (api.cuDriverGetVersion == nullptr || api.cuDriverGetVersion(version) != CUDA_SUCCESS) return "the driver does not tell its version";
  if (*version < real_driver::kOldestDriverVersion) return "the driver is for CUDA " + text_of_version(*version) + ", 11.4 is the oldest served";
  return missing.empty() ? missing : "the driver has no " + missing;
}

/// What starting needs from the loader. All of it is gathered before this thread becomes the one that starts and that all others wait for: another
/// thread may hold the loader's lock while its dlopen runs constructors, and those may call us.
struct Found {
  DriverApi api;
  std::string missing;  ///< the first required entry point that the driver lacks
  bool driver_precedes_us = false;
};

/// False: there is no driver yet, or the program has not called cuInit.
bool find_driver(Found& found) {
  if (!real_driver::bind(true)) return false;
  found.missing = real_driver::fill(found.api);
  found.driver_precedes_us = real_driver::driver_precedes_us();
  return driver_is_initialised(found.api);
}

/// Takes the process from cold to live; returns the phase that it is in then.
Phase start(const Found& found) {
  std::unique_ptr<config::Options> options = load_options();
  if (options->policy == config::Policy::off) return Phase::aside;
  log::open(*options);
  settle_patterns(*options);
  int version = 0;
  if (const std::string reason = unfit(found.api, found.missing, &version); !reason.empty()) {
    log::info("not pooling: " + reason);
    return Phase::aside;
  }
  if (found.driver_precedes_us) {  // blocks that looked-up functions serve would be freed past us
    log::warn("not pooling: LD_PRELOAD names libcuda before libcupool.so");
    return Phase::aside;
  }
  if (!switch_on()) return Phase::aside;
  for (const std::string& warning : options->warnings) log::warn(warning);
  make_process(found.api, version, std::move(options));
  const std::string& report = process().report_path;
  log::info("cupool " CUPOOL_VERSION ", driver for CUDA " + text_of_version(version) + (report.empty() ? "; no report" : "; report to " + report));
  g_live_pid.store(getpid(), std::memory_order_relaxed);
  pthread_atfork(nullptr, nullptr, &mark_child);
  exit_hooks::arm();
  return Phase::live;
}

/// Waits until another thread has started the process, which takes milliseconds; true: it is live. The wait has an end, because that thread may wait
/// in turn for something that this one holds. Then the call passes to the driver, as before cuInit.
bool wait_for_other_thread() {
  for (int pauses = 0; pauses < kMostPauses; ++pauses) {
    const std::uint32_t word = phase_word.load(std::memory_order_acquire)->load(std::memory_order_acquire);
    if ((word & kPhaseMask) != value_of(Phase::starting)) return word == value_of(Phase::live);
    if (word != starting_word()) return false;
    if (pauses < kYields) sched_yield();
    else nanosleep(&kPause, nullptr);  // yielding alone does not help where that thread has a lower priority on the same core
  }
  return false;
}

}  // namespace

constinit std::atomic<std::atomic<std::uint32_t>*> phase_word{&g_initial_word};

bool go_live() {
  const Unnoticed unnoticed;
  std::uint32_t expected = value_of(Phase::cold);
  Phase reached = Phase::aside;
  try {
    if (phase() != Phase::cold) return wait_for_other_thread();
    Found found;
    const bool is_off = is_switched_off();
    if (!is_off && !find_driver(found)) return false;
    if (!g_initial_word.compare_exchange_strong(expected, starting_word(), std::memory_order_acq_rel)) return wait_for_other_thread();
    expected = starting_word();
    if (!is_off) reached = start(found);
  } catch (...) {
    reached = Phase::aside;  // most likely host memory is out: the program runs as if we were not there
  }
  if (reached != Phase::live) {
    g_initial_word.compare_exchange_strong(expected, value_of(reached), std::memory_order_release);  // unless another thread starts by now
    return false;
  }
  std::atomic<std::uint32_t>* word = make_wiped_word();
  word->store(value_of(Phase::live), std::memory_order_release);
  phase_word.store(word, std::memory_order_release);
  return true;
}

void end_other_threads() {
  pid_t none = 0;
  g_ending_thread.compare_exchange_strong(none, gettid(), std::memory_order_relaxed);
}

void stop_if_ended() {
  const pid_t ending = g_ending_thread.load(std::memory_order_relaxed);
  if (ending == 0 || phase() != Phase::exiting || ending == gettid()) [[likely]]
    return;
  const Uncancelled uncancelled;
  for (;;) nanosleep(&kPause, nullptr);  // some milliseconds, until the process is gone; the watchdog of exit.cpp bounds it
}

bool is_own_process() { return getpid() == g_live_pid.load(std::memory_order_relaxed); }

bool begin_exit() {
  std::uint32_t expected = value_of(Phase::live);
  if (!is_own_process()) return false;
  std::atomic<std::uint32_t>* word = phase_word.load(std::memory_order_acquire);
  return word->compare_exchange_strong(expected, value_of(Phase::exiting), std::memory_order_acq_rel) || expected == value_of(Phase::exiting);
}

}  // namespace cupool::shim::lifecycle
