// call(): what every exported function does first, in the order in which the real driver answers: count the call, injected fault, deinitialised,
// forked child, not initialised, called from a host function. Then it runs the body under the lock (call_about_thread: without).
//
// `Call` is what a body gets; the body returns the CUresult. Nothing throws out of an exported function.
#pragma once

#include "tests/sim/simulator.hpp"

#define CUSIM_TRY(expression)                                                                    \
  do {                                                                                           \
    if (const CUresult cusim_code = (expression); cusim_code != CUDA_SUCCESS) return cusim_code; \
  } while (false)

namespace cusim {

struct Call {
  Simulator& sim;
  Lock& lock;
  ThreadState& thread;
  Symbol symbol;

  std::string name() const { return symbol_row(symbol).symbol; }
  /// The current context if it can serve: INVALID_CONTEXT without one, CONTEXT_IS_DESTROYED, or its sticky error.
  CUresult current(Context** out);
  /// The live context that a call names (broken or not), or what current() says where it names none.
  CUresult named_or_current(CUcontext handle, Context** out);
  CUresult device(CUdevice ordinal, Device** out) {
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= sim.devices.size()) return CUDA_ERROR_INVALID_DEVICE;
    *out = sim.devices[static_cast<std::size_t>(ordinal)].get();
    return CUDA_SUCCESS;
  }
  Device& device_of(const Context& context) { return *sim.devices[static_cast<std::size_t>(context.device)]; }
  /// The stream that `handle` means in this thread; the sticky error of its context.
  CUresult stream(CUstream handle, Stream** out);
  /// The answer to a request that is not modelled: one line on stderr, a violation, CUDA_ERROR_NOT_SUPPORTED.
  CUresult refuse_unmodelled(const char* what);
};

/// CUDA_SUCCESS, or what the call answers without its body being run.
CUresult admit(Symbol symbol, bool needs_init);
/// Under CUSIM_CLOCK=real: moves the virtual clock to real time.
void run_clock(Simulator& sim, Lock& lock);

template <class Body> CUresult call(Symbol symbol, Body&& body, bool needs_init = true) {
  CUSIM_TRY(admit(symbol, needs_init));
  Simulator& sim = Simulator::instance();
  Lock lock(sim.mutex);
  if (sim.settings.real_clock) run_clock(sim, lock);
  if (!sim.held_elsewhere.empty()) sim.drop_what_is_let_go();
  Call context{sim, lock, sim.thread(), symbol};
  return body(context);
}

/// A call about the calling thread's own state and nothing else: it takes no lock, as it takes none in the real driver, so that threads
/// which only ask what is current are not measured waiting for each other. But the clock moves under the lock, and so does a context
/// that is made anew in another's place.
template <class Body> CUresult call_about_thread(Symbol symbol, Body&& body) {
  Simulator& sim = Simulator::instance();
  if (sim.settings.real_clock || sim.settings.reuses_handles) return call(symbol, [&](Call& c) { return body(c.thread); });
  CUSIM_TRY(admit(symbol, true));
  return body(sim.thread());
}

/// Since CUDA 13.5 memory can be asked for in a locality domain, which is a part of a device. Devices here have one domain that is all of the device,
/// so that it is as if the device had been named (CUDA Driver API 13.5, cuMemPoolCreate).
inline CUmemLocation without_domain(const Simulator& sim, const CUmemLocation& asked) {
  constexpr auto kLocalityDomain = static_cast<CUmemLocationType>(6);
  constexpr int kSince = 13050;
  constexpr int kOneByte = 256;  // of the device; then that of the domain
  if (asked.type != kLocalityDomain || sim.settings.driver_version < kSince || asked.id < 0 || asked.id >= kOneByte) return asked;
  return {CU_MEM_LOCATION_TYPE_DEVICE, asked.id};
}

/// The handle that a null stream means in a _ptsz or _ptds variant.
inline CUstream per_thread(CUstream handle) { return handle == nullptr ? CU_STREAM_PER_THREAD : handle; }

}  // namespace cusim
