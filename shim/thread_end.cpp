// See thread_end.hpp. The key's value holds the thread's number (0: it has begun no capture) and how many more rounds its destructor is to wait.
#include "shim/thread_end.hpp"

#include <limits.h>
#include <pthread.h>

#include "shim/lifecycle.hpp"
#include "shim/process.hpp"

namespace cupool::shim::thread_end {
namespace {

constexpr std::uint64_t kRounds = PTHREAD_DESTRUCTOR_ITERATIONS;
/// The destructor acts in the last but one round: late, because destructors of others free device memory, but not in the last, in which sanitizers
/// end their part of the thread and a mutex that is locked after that ends the program.
constexpr std::uint64_t kAsksAgain = kRounds - 2;

pthread_key_t g_key;
bool g_has_key = false;
pthread_once_t g_once = PTHREAD_ONCE_INIT;

/// The key's value, which is never null: then no destructor would be called.
void* value_of(std::uint64_t thread, std::uint64_t rounds) { return reinterpret_cast<void*>((2 * thread + 1) * kRounds + rounds); }

void at_end(void* value) {
  const auto number = reinterpret_cast<std::uintptr_t>(value);
  const std::uint64_t thread = number / kRounds / 2;
  if (number % kRounds != 0) {
    pthread_setspecific(g_key, value_of(thread, number % kRounds - 1));
    return;
  }
  if (lifecycle::phase() != lifecycle::Phase::live || !lifecycle::is_own_process()) return;
  PoolSet& pools = process().pools;
  if (thread != 0) pools.forget_captures_of_thread(thread);
  pools.thread_ending();
}

void make_key() { g_has_key = pthread_key_create(&g_key, &at_end) == 0; }

}  // namespace

void watch(std::uint64_t thread) {
  pthread_once(&g_once, &make_key);
  if (g_has_key && (thread != 0 || pthread_getspecific(g_key) == nullptr)) pthread_setspecific(g_key, value_of(thread, kAsksAgain));
}

}  // namespace cupool::shim::thread_end
