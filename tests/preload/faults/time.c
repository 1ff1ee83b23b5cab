/* Time of the workload's threads: a pause takes none, and moves the clock that tells of it, and the virtual GPU, by its length.
 *
 * A pool polls for up to a second where the driver does not tell that work is over; under a fault that lasts it would do so at every
 * allocation. Here that costs no real time. The two functions stand before libc's in the order of symbols, whoever calls them. Threads that
 * are not the workload's (a library's watchdog) have the machine's time. Not for programs that run on several threads at once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <time.h>

#include "calls.h"

enum { kNsPerSecond = 1000000000 };

static _Thread_local bool t_is_virtual;
static _Atomic uint64_t g_passed_ns;

void be_virtual(bool is_virtual) { t_is_virtual = is_virtual; }

static void* next(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  if (found == NULL) abort();
  return found;
}

__attribute__((visibility("default"))) int nanosleep(const struct timespec* duration, struct timespec* left) {
  static int (*real)(const struct timespec*, struct timespec*);
  if (real == NULL) *(void**)&real = next("nanosleep");
  if (!t_is_virtual) return real(duration, left);
  const uint64_t duration_ns = (uint64_t)duration->tv_sec * kNsPerSecond + (uint64_t)duration->tv_nsec;
  atomic_fetch_add(&g_passed_ns, duration_ns);
  cusim_advance_ns(duration_ns);
  return 0;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (real == NULL) *(void**)&real = next("clock_gettime");
  const int failed = real(clock, now);
  if (failed != 0 || clock != CLOCK_MONOTONIC) return failed;
  const uint64_t passed_ns = atomic_load(&g_passed_ns) + (uint64_t)now->tv_nsec;
  now->tv_sec += (time_t)(passed_ns / kNsPerSecond);
  now->tv_nsec = (long)(passed_ns % kNsPerSecond);
  return 0;
}
