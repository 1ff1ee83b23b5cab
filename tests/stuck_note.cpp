// Says on stderr which test case is stuck, and where its threads are: a test that the harness kills for its time tells nothing else.
//
// Every kPatience_s that one test case takes there is a note; the test goes on. A note beside a test that passes is not shown.
// The handlers call backtrace(3), which is not safe in a signal handler before it was called once; after that it takes no lock.
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>

namespace {

constexpr long kPatience_s = 50;
constexpr int kMostFrames = 40;
constexpr int kMostLooks = 10'000'000;  ///< so often a thread is asked whether it has answered

char g_name[256];
std::atomic<bool> g_has_answered{false};

int own_signal() { return SIGRTMAX - 3; }

void say(const char* text) { static_cast<void>(!write(STDERR_FILENO, text, std::strlen(text))); }

void say_where() {
  void* frames[kMostFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kMostFrames), STDERR_FILENO);
}

void answer(int) {
  const int error = errno;
  say("another thread:\n");
  say_where();
  g_has_answered.store(true);
  errno = error;
}

/// The entries of /proc/self/task, without memory: the thread that is stuck may hold the heap's lock.
void ask_the_others() {
  const int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(std::uint64_t) char entries[4096];
  for (long bytes = 0; (bytes = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0;) {
    for (long at = 0; at < bytes;) {
      std::uint16_t length = 0;  // d_ino, d_off, d_reclen, d_type, d_name
      std::memcpy(&length, entries + at + 16, sizeof length);
      const long thread = std::strtol(entries + at + 19, nullptr, 10);
      at += length;
      if (thread <= 0 || thread == syscall(SYS_gettid)) continue;
      g_has_answered.store(false);
      if (syscall(SYS_tgkill, getpid(), thread, own_signal()) != 0) continue;
      for (int i = 0; i < kMostLooks && !g_has_answered.load(); ++i) {}
    }
  }
  close(folder);
}

void note(int) {
  const int error = errno;
  say("\nstill running: ");
  say(g_name);
  say("\n");
  say_where();
  ask_the_others();
  errno = error;
}

void set_timer(long seconds) {
  itimerval timer{};
  timer.it_value.tv_sec = timer.it_interval.tv_sec = seconds;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

struct StuckNote : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;

  void testRunStarting(const Catch::TestRunInfo&) override {
    void* frame = nullptr;
    backtrace(&frame, 1);  // it loads the unwinder
    struct sigaction action {};
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    action.sa_handler = &answer;
    sigaction(own_signal(), &action, nullptr);
    action.sa_handler = &note;
    sigaction(SIGALRM, &action, nullptr);
  }
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    set_timer(0);
    std::strncpy(g_name, info.name.c_str(), sizeof g_name - 1);
    set_timer(kPatience_s);
  }
  void testRunEnded(const Catch::TestRunStats&) override {
    std::strncpy(g_name, "the end of the process", sizeof g_name - 1);
    set_timer(kPatience_s);
  }
};

CATCH_REGISTER_LISTENER(StuckNote)

}  // namespace
