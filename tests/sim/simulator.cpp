// The life of the simulated driver in its process: load, initialisation, fork, exit.
#include "tests/sim/simulator.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/sim/call.hpp"
#include "tests/sim/exit_log.hpp"

namespace cusim {
namespace {

constexpr std::uint64_t kFirstHandle = 0x5100'0000'0000;

thread_local ThreadState* t_state = nullptr;

/// Tells of the end of its thread. Its own object, so that t_state stays readable by whoever comes later.
struct ThreadEnd {
  bool is_armed = false;
  ~ThreadEnd() {
    if (!is_armed || t_state == nullptr) return;
    Simulator& sim = Simulator::instance();
    if (sim.settings.thread_streams_stay || sim.forked || sim.deinitialised) return;
    const std::lock_guard guard(sim.mutex);
    sim.end_thread(*t_state);
  }
};
thread_local ThreadEnd t_end;

void before_fork() { Simulator::instance().mutex.lock(); }
void after_fork_in_parent() { Simulator::instance().mutex.unlock(); }
void after_fork_in_child() {
  Simulator& sim = Simulator::instance();
  if (sim.initialised) sim.forked = true;
  sim.mutex.unlock();
}

/// Work that was submitted earlier has met an error, and this call is the first to hear of it.
void break_current(Simulator& sim, CUresult code) {
  const Lock lock(sim.mutex);
  const ThreadState& state = sim.thread();
  if (!state.stack.empty() && state.stack.back() != nullptr && state.stack.back()->alive) sim.break_context(*state.stack.back(), code);
}

/// Registered at load, so that it runs after the handlers that programs registered: writes CUSIM_LOG.
__attribute__((destructor)) void at_unload() { write_exit_log(); }
__attribute__((constructor)) void at_load() { Simulator::instance(); }

}  // namespace

Simulator& Simulator::instance() {
  // NOLINTNEXTLINE: never destroyed, because exit handlers still call the driver
  static Simulator* const simulator = [] {
    auto* fresh = new Simulator;
    fresh->reset();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return fresh;
  }();
  return *simulator;
}

void Simulator::reset() {
  const std::lock_guard guard(mutex);
  timeline.clear();
  captures.clear();
  graphs.clear();
  graph_execs.clear();
  for (const auto& memory : graph_memory) {  // operations that never ran hold the memory, and it holds them
    memory->freed.reset();
    memory->last_use.reset();
  }
  graph_memory.clear();
  events.clear();
  events_of_primaries.clear();
  streams.clear();
  arrays.clear();
  modules.clear();
  for (const auto& [handle, known] : known_objects)
    if (const std::shared_ptr<UserObject> object = known.lock()) object->forget();
  known_objects.clear();
  user_objects.clear();
  for (const auto& [handle, memory] : external) close(memory.fd);
  external.clear();
  given_back_streams.clear();
  given_back_events.clear();
  release_all_regions();
  reservations.clear();
  mappings.clear();
  for (auto& [handle, memory] : physical) physical_store.give_back(*memory);
  physical.clear();
  held_elsewhere.clear();
  physical_store.clear();
  exports.clear();
  pools_of_hosts.clear();
  pools.clear();
  contexts.clear();
  contexts_by_handle.clear();
  devices.clear();
  settings = read_settings();
  ledger.reset();
  for (const FaultSetting& fault : settings.faults) ledger.add_fault(fault);
  const std::uint64_t area_bytes = kDeviceAreaBytes / (settings.devices.empty() ? 1 : settings.devices.size()) / kGranuleBytes * kGranuleBytes;
  for (std::size_t i = 0; i < settings.devices.size(); ++i) {
    devices.push_back(std::make_unique<Device>(static_cast<int>(i), settings.devices[i], kDeviceArea + i * area_bytes, area_bytes));
  }
  if (next_handle_ == 0) next_handle_ = kFirstHandle;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    Context* primary = create_context(static_cast<int>(i), true, 0);
    primary->alive = false;
    devices[i]->primary = primary;
  }
  address_space = std::make_unique<AddressSpace>(kReservationArea, kReservationAreaBytes);
  mismatched_bytes = 0;
  initialised = false;
  deinitialised = false;
  const std::lock_guard threads_guard(threads_mutex_);
  for (auto& state : threads_) *state = ThreadState{};
}

ThreadState& Simulator::thread() {
  if (t_state == nullptr) {
    auto fresh = std::make_unique<ThreadState>();
    t_state = fresh.get();
    t_end.is_armed = true;
    const std::lock_guard guard(threads_mutex_);
    threads_.push_back(std::move(fresh));
  }
  return *t_state;
}

bool Simulator::was_handle(const void* handle) const {
  const std::uint64_t number = as_number(handle);
  return number > kFirstHandle && number <= next_handle_ && number % 64 == 0;
}

CUresult admit(Symbol symbol, bool needs_init) {
  Simulator& sim = Simulator::instance();
  if (const auto failure = sim.ledger.count_call(symbol)) {
    if (failure->is_sticky) break_current(sim, failure->code);
    return failure->code;
  }
  if (sim.deinitialised.load(std::memory_order_relaxed)) {
    sim.violate(std::string(symbol_row(symbol).symbol) + " called after the driver was deinitialised");
    return CUDA_ERROR_DEINITIALIZED;
  }
  // A child that inherited a used driver: from everything, cuInit included, but for cuEventQuery (an H100, driver 580).
  if (sim.forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  if (needs_init && !sim.initialised.load(std::memory_order_acquire)) return CUDA_ERROR_NOT_INITIALIZED;
  if (t_state != nullptr && t_state->in_host_function) {
    sim.violate(std::string(symbol_row(symbol).symbol) + " called from a host function");
    return CUDA_ERROR_NOT_PERMITTED;
  }
  return CUDA_SUCCESS;
}

CUresult Call::current(Context** out) {
  Context* context = thread.stack.empty() ? nullptr : thread.stack.back();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) {
    sim.violate(name() + " called with a current context that is destroyed");
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (context->broken != CUDA_SUCCESS) return context->broken;
  *out = context;
  return CUDA_SUCCESS;
}

CUresult Call::named_or_current(CUcontext handle, Context** out) {
  if (handle == nullptr) return current(out);
  Context* context = sim.find_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *out = context;
  return CUDA_SUCCESS;
}

CUresult Call::refuse_unmodelled(const char* what) {
  std::fprintf(stderr, "cusim: %s: %s is not modelled\n", name().c_str(), what);
  sim.violate(name() + ": " + what + " is not modelled");
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Call::stream(CUstream handle, Stream** out) {
  CUSIM_TRY(sim.resolve_stream(handle, out));
  return (*out)->context->broken;
}

}  // namespace cusim
