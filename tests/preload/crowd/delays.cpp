// libdelays.so: whoever takes or gives up a lock is now and then kept for a moment, so that threads meet where they hardly ever do otherwise.
//
// Preloaded before the library that is tested. Every seventy-fifth call or so sleeps for up to a millisecond; drawn per thread, from its number and
// the time: what one run finds another need not.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace {

constexpr std::uint64_t kOneIn = 1000;  ///< of so many calls
constexpr std::uint64_t kSleeps = 13;   ///< so many sleep
constexpr std::uint64_t kYields = 40;   ///< and so many let others run
constexpr std::uint64_t kLongest_ns = 1'000'000;

thread_local std::uint64_t t_state = 0;

void delay() {
  if (t_state == 0) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    t_state = (static_cast<std::uint64_t>(now.tv_nsec) << 32 ^ static_cast<std::uint64_t>(syscall(SYS_gettid)) * 0x9e3779b97f4a7c15) | 1;
  }
  t_state ^= t_state << 13;  // xorshift64 (Marsaglia, 2003)
  t_state ^= t_state >> 7;
  t_state ^= t_state << 17;
  const std::uint64_t drawn = t_state % kOneIn;
  if (drawn < kSleeps) {
    const timespec moment{0, static_cast<long>((t_state >> 20) % kLongest_ns)};
    syscall(SYS_nanosleep, &moment, nullptr);
  } else if (drawn < kSleeps + kYields) {
    syscall(SYS_sched_yield);
  }
}

template <class Lock> struct Real {
  int (*call)(Lock*) = nullptr;
  const char* name;
  void find() { call = reinterpret_cast<int (*)(Lock*)>(dlsym(RTLD_NEXT, name)); }
  int operator()(Lock* lock) {
    if (call == nullptr) find();  // before the constructor has run
    return call(lock);
  }
};
Real<pthread_mutex_t> g_lock{.name = "pthread_mutex_lock"};
Real<pthread_mutex_t> g_unlock{.name = "pthread_mutex_unlock"};
Real<pthread_rwlock_t> g_share{.name = "pthread_rwlock_rdlock"};
Real<pthread_rwlock_t> g_own{.name = "pthread_rwlock_wrlock"};
Real<pthread_rwlock_t> g_leave{.name = "pthread_rwlock_unlock"};

__attribute__((constructor)) void find_all() {
  g_lock.find();
  g_unlock.find();
  g_share.find();
  g_own.find();
  g_leave.find();
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* lock) {
  delay();
  return g_lock(lock);
}

int pthread_mutex_unlock(pthread_mutex_t* lock) {
  const int result = g_unlock(lock);
  delay();
  return result;
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) {
  delay();
  return g_share(lock);
}

int pthread_rwlock_wrlock(pthread_rwlock_t* lock) {
  delay();
  return g_own(lock);
}

int pthread_rwlock_unlock(pthread_rwlock_t* lock) {
  const int result = g_leave(lock);
  delay();
  return result;
}

}  // extern "C"
