// The control surface (cusim.h) and the test kernels.
#include "tests/sim/cusim.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/sim/call.hpp"
#include "tests/sim/loud.hpp"

using namespace cusim;

namespace {

enum class Touch { fill, check };

/// Kernels see the rights and the liveness of memory when they complete: that is when early reuse shows.
void run_touch(Simulator& sim, Context& context, CUdeviceptr address, std::size_t bytes, std::uint8_t value, Touch touch) {
  if (context.broken != CUDA_SUCCESS) return;
  std::string why;
  if (!sim.may_touch(context, address, bytes, touch == Touch::fill, &why)) {
    sim.violate("a kernel touched memory it may not: " + why);
    sim.break_device(context.device, CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  const std::vector<std::uint8_t> expected(std::min<std::size_t>(bytes, std::size_t{1} << 20), value);
  std::vector<std::uint8_t> buffer(touch == Touch::check ? expected.size() : 0);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(expected.size(), bytes - done);
    if (touch == Touch::fill) {
      sim.write(address + done, expected.data(), piece);
    } else {
      sim.read(address + done, buffer.data(), piece);
      if (std::memcmp(buffer.data(), expected.data(), piece) != 0) {  // else nothing to count: instrumented, a loop over bytes is slow
        for (std::size_t i = 0; i < piece; ++i) sim.mismatched_bytes += buffer[i] != value ? 1 : 0;
      }
    }
    done += piece;
  }
}

/// Not an exported driver symbol: no counter, no fault, but the same rules as a kernel launch.
CUresult launch(CUstream handle, const std::function<Work(Simulator&, Context&)>& make) {
  Simulator& sim = Simulator::instance();
  if (sim.deinitialised) return CUDA_ERROR_DEINITIALIZED;
  if (sim.forked || !sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
  Lock lock(sim.mutex);
  ThreadState& state = sim.thread();
  Context* context = state.stack.empty() ? nullptr : state.stack.back();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->broken != CUDA_SUCCESS) return context->broken;
  Stream* stream = nullptr;
  CUSIM_TRY(sim.resolve_stream(handle, &stream));
  // In a green stream with the primary current (an H100, driver 580), and the other way round: taken.
  if (stream->context->memory_owner() != context->memory_owner()) return CUDA_ERROR_INVALID_HANDLE;
  return sim.enqueue(*stream, make(sim, *stream->context), lock);
}

CUresult launch_touch(CUstream stream, CUdeviceptr address, std::size_t bytes, std::uint8_t value, std::uint64_t duration_ns, Touch touch) {
  return launch(stream, [&](Simulator& sim, Context& context) {
    Work work;
    work.duration_ns = duration_ns;
    work.touch(address, bytes);
    work.action = [&sim, &context, address, bytes, value, touch] { run_touch(sim, context, address, bytes, value, touch); };
    return work;
  });
}

}  // namespace

namespace cusim {

int refuse_loudly(Symbol symbol) {
  if (const CUresult code = admit(symbol, false); code != CUDA_SUCCESS) return code;
  const char* name = symbol_row(symbol).symbol;
  std::fprintf(stderr, "cusim: %s is not implemented by the simulated driver\n", name);
  Simulator::instance().violate(std::string(name) + " is not implemented by the simulated driver");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace cusim

extern "C" {

void cusim_reset(void) { Simulator::instance().reset(); }

void cusim_configure(const char* name, const char* value) {
  const std::lock_guard guard(Simulator::instance().mutex);
  override_setting(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
}

uint64_t cusim_now_ns(void) {
  const std::lock_guard guard(Simulator::instance().mutex);
  return Simulator::instance().timeline.now_ns();
}

void cusim_advance_ns(uint64_t duration_ns) {
  Simulator& sim = Simulator::instance();
  Lock lock(sim.mutex);
  sim.timeline.advance_to(sim.timeline.now_ns() + duration_ns, lock);
}

CUresult cusim_launch_fill(CUstream stream, CUdeviceptr address, size_t bytes, uint8_t value, uint64_t duration_ns) {
  return launch_touch(stream, address, bytes, value, duration_ns, Touch::fill);
}

CUresult cusim_launch_check(CUstream stream, CUdeviceptr address, size_t bytes, uint8_t expected, uint64_t duration_ns) {
  return launch_touch(stream, address, bytes, expected, duration_ns, Touch::check);
}

CUresult cusim_launch_spin(CUstream stream, uint64_t duration_ns) {
  return launch(stream, [&](Simulator&, Context&) {
    Work work;
    work.duration_ns = duration_ns;
    return work;
  });
}

CUresult cusim_launch_wait_host(CUstream stream, volatile uint32_t* flag) {
  if (flag == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(stream, [&](Simulator&, Context&) {
    Work work;
    work.host_flag = flag;
    return work;
  });
}

uint64_t cusim_mismatched_bytes(void) {
  const std::lock_guard guard(Simulator::instance().mutex);
  return Simulator::instance().mismatched_bytes;
}

void cusim_break_context(CUcontext handle, CUresult code) {
  Simulator& sim = Simulator::instance();
  const std::lock_guard guard(sim.mutex);
  if (Context* context = sim.find_context(handle)) sim.break_context(*context, code);
}

void cusim_break_device(int device, CUresult code) {
  Simulator& sim = Simulator::instance();
  const std::lock_guard guard(sim.mutex);
  if (device >= 0 && static_cast<std::size_t>(device) < sim.devices.size()) sim.break_device(device, code);
}

uint64_t cusim_calls(const char* symbol) {
  const SymbolRow* row = find_symbol(symbol);
  if (row == nullptr) return 0;
  return Simulator::instance().ledger.calls(static_cast<Symbol>(row - &symbol_row(Symbol{})));
}

uint64_t cusim_total_calls(void) { return Simulator::instance().ledger.total_calls(); }

void cusim_fail(const char* symbol, uint64_t nth, CUresult code, uint64_t times) {
  Simulator::instance().ledger.add_fault({symbol, nth, code, times, false});
}

size_t cusim_violation_count(void) { return Simulator::instance().ledger.violation_count(); }
const char* cusim_violation(size_t index) { return Simulator::instance().ledger.violation(index); }

uint64_t cusim_used_bytes(int device) {
  Simulator& sim = Simulator::instance();
  const std::lock_guard guard(sim.mutex);
  sim.drop_what_is_let_go();
  const auto at = static_cast<std::size_t>(device);
  return at < sim.devices.size() ? sim.devices[at]->memory.used_bytes() : 0;
}

uint64_t cusim_allocation_count(int device) {
  Simulator& sim = Simulator::instance();
  const std::lock_guard guard(sim.mutex);
  const auto at = static_cast<std::size_t>(device);
  return at < sim.devices.size() ? sim.devices[at]->memory.allocation_count() : 0;
}

void cusim_deinitialize(void) { Simulator::instance().deinitialised = true; }

}  // extern "C"
