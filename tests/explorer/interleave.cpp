// The hand-over, and the locking functions of libpthread as this process has them.
#include "interleave.hpp"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "virtual_time.hpp"

namespace explorer::interleave {
namespace {

enum class State { idle, armed, open, inside, finished };

Actors* g_actors = nullptr;
std::function<void(const char*)> g_on_deadlock;
State g_state = State::idle;
std::size_t g_parent = 0, g_child = 0;
unsigned g_calls_left = 0;
unsigned g_blocked = 0;  ///< times that nobody could go on, in a row
bool g_is_child = false;
bool g_is_parent_kept = false;  ///< by the driver, until a flag is set: it looks, and goes back to sleep
unsigned g_pauses = 0;          ///< of the child meanwhile

constexpr unsigned kDeadlock = 200;
constexpr unsigned kPausesPerLook = 64;

void switch_to(std::size_t other, std::size_t self) {
  g_is_child = other == g_child;
  g_actors->hand_to(other);
  g_actors->wait_for_turn(self);
}

/// A lock is taken: the other has it, and must go on.
void blocked() {
  if (++g_blocked > kDeadlock) g_on_deadlock("two threads wait for each other");
  const std::size_t self = g_is_child ? g_child : g_parent;
  switch_to(self == g_child ? g_parent : g_child, self);
}

template <class Function> Function real(const char* name) { return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name)); }

/// Takes what `attempt` would take; outside of an interrupted operation nobody else runs, so `wait` does not block long.
template <class Attempt, class Wait> int take(Attempt&& attempt, Wait&& wait) {
  for (;;) {
    const int result = attempt();
    if (result != EBUSY) {
      g_blocked = 0;
      return result;
    }
    if (g_state != State::inside) return wait();
    blocked();
  }
}

}  // namespace

void attach(Actors* actors, std::function<void(const char*)> on_deadlock) {
  g_actors = actors;
  g_on_deadlock = std::move(on_deadlock);
}

void arm(std::size_t parent, std::size_t child, unsigned at_call) {
  g_state = State::armed;
  g_parent = parent;
  g_child = child;
  g_calls_left = at_call;
  g_is_child = false;
}

void open() {
  if (g_state == State::armed) g_state = State::open;
}
void close() {
  if (g_state == State::open) g_state = State::armed;
}

void pausing() {
  if (g_state != State::inside) return point();
  if (g_is_child && g_is_parent_kept && ++g_pauses % kPausesPerLook != 0) return;
  const std::size_t self = g_is_child ? g_child : g_parent;
  switch_to(self == g_child ? g_parent : g_child, self);
}

bool kept_by_driver() {
  if (g_state != State::inside || g_is_child) return false;
  g_is_parent_kept = true;
  switch_to(g_child, g_parent);
  g_is_parent_kept = false;
  return true;
}

void point() {
  if (g_state != State::open || --g_calls_left != 0) return;
  g_state = State::inside;
  switch_to(g_child, g_parent);
}

bool is_inside(std::size_t actor) { return g_state == State::inside && actor == g_child; }

void finished() {
  g_state = State::finished;
  g_is_child = false;
}

bool disarm() {
  while (g_state == State::inside) blocked();
  const bool ran = g_state == State::finished;
  g_state = State::idle;
  g_blocked = 0;
  return ran;
}

}  // namespace explorer::interleave

using namespace explorer;

extern "C" {

__attribute__((visibility("default"))) int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto wait = interleave::real<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  if (virtual_time::is_driver(__builtin_return_address(0))) interleave::point();
  return interleave::take([&] { return pthread_mutex_trylock(mutex); }, [&] { return wait(mutex); });
}

__attribute__((visibility("default"))) int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  static const auto wait = interleave::real<int (*)(pthread_rwlock_t*)>("pthread_rwlock_rdlock");
  return interleave::take([&] { return pthread_rwlock_tryrdlock(lock); }, [&] { return wait(lock); });
}

__attribute__((visibility("default"))) int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  static const auto wait = interleave::real<int (*)(pthread_rwlock_t*)>("pthread_rwlock_wrlock");
  return interleave::take([&] { return pthread_rwlock_trywrlock(lock); }, [&] { return wait(lock); });
}

/// Outside of an interrupted operation nobody could wake it; inside, the other goes on first. Waking up for nothing is allowed.
__attribute__((visibility("default"))) int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t* mutex) {
  pthread_mutex_unlock(mutex);
  if (interleave::g_state == interleave::State::inside) interleave::blocked();
  return pthread_mutex_lock(mutex);
}

}  // extern "C"
