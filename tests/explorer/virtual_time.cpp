// The two functions of libc, as this process has them.
#include "virtual_time.hpp"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "cusim.h"
#include "interleave.hpp"
#include "program.hpp"

namespace explorer::virtual_time {
namespace {

constexpr std::uint64_t kStart_ns = 1'000'000'000'000;
std::atomic<std::uint64_t> g_now_ns{kStart_ns};
std::uint64_t g_paused_ns = 0;
Program* g_program = nullptr;

}  // namespace

double real_seconds() {
  timespec now{};
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

bool is_driver(const void* caller) {
  static const void* last = nullptr;
  static bool last_answer = false;
  static std::uintptr_t begin = 0, end = 0;  // of the driver's code, as far as it was seen to call
  const auto at = reinterpret_cast<std::uintptr_t>(caller);
  if (at >= begin && at < end) return true;
  if (caller == last) return last_answer;
  Dl_info info{};
  last_answer = dladdr(caller, &info) != 0 && info.dli_fname != nullptr && std::strstr(info.dli_fname, "libcuda.so") != nullptr;
  last = caller;
  if (last_answer) {
    begin = begin == 0 ? at : std::min(begin, at);
    end = std::max(end, at + 1);
  }
  return last_answer;
}

void attach(Program* program) { g_program = program; }
void begin_operation() { g_paused_ns = 0; }

void pause(std::uint64_t duration_ns, void* caller) {
  if (g_program != nullptr && is_driver(caller)) {
    if (g_program->may_be_kept() && interleave::kept_by_driver()) return;
    if (!g_program->release_for_driver() && !g_program->may_be_kept()) g_program->hit("a call waits for work that waits for the thread that calls");
    return;
  }
  interleave::pausing();
  g_now_ns += duration_ns;
  g_paused_ns += duration_ns;
  if (g_program == nullptr) return;
  if (g_paused_ns > kOthersTime_ns) g_program->release_elsewhere();
  if (g_paused_ns > kLongestPause_ns) g_program->hit("a call waits without bound");
  cusim_advance_ns(duration_ns);
}

std::uint64_t now_ns() { return g_now_ns += 50; }

}  // namespace explorer::virtual_time

extern "C" {

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* out) noexcept {
  if (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME) return static_cast<int>(syscall(SYS_clock_gettime, clock, out));
  const std::uint64_t now = explorer::virtual_time::now_ns();
  *out = {static_cast<time_t>(now / 1'000'000'000), static_cast<long>(now % 1'000'000'000)};
  return 0;
}

__attribute__((visibility("default"))) int nanosleep(const timespec* duration, timespec*) {
  const std::uint64_t duration_ns = static_cast<std::uint64_t>(duration->tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(duration->tv_nsec);
  explorer::virtual_time::pause(duration_ns, __builtin_return_address(0));
  return 0;
}

}  // extern "C"
