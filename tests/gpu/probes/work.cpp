// See work.hpp. The PTX is for sm_75 and newer (what CUDA 13 supports); the driver compiles it for the device.
#include "tests/gpu/probes/work.hpp"

namespace probe {
namespace {

// The control surface of the simulated driver (tests/sim/cusim.h), by name: there are no kernels there.
using SimulatedSpin = CUresult(CUstream, std::uint64_t);

constexpr char kSpinPtx[] = R"(.version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 duration_ns)
{
  .reg .u64 %limit, %start, %now;
  .reg .pred %again;
  ld.param.u64 %limit, [duration_ns];
  mov.u64 %start, %globaltimer;
more:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %start;
  setp.lt.u64 %again, %now, %limit;
  @%again bra more;
  ret;
}
)";

}  // namespace

Spin::Spin() {
  if (find_symbol("cusim_launch_spin") != nullptr) return;
  CUmodule module = nullptr;
  prepare(CU(cuModuleLoadData)(&module, kSpinPtx), "cuModuleLoadData of the spin kernel");
  prepare(CU(cuModuleGetFunction)(&kernel_, module, "spin"), "cuModuleGetFunction");
  launch(nullptr, 0);  // modules load lazily: not while a question is being timed
  prepare(CU(cuCtxSynchronize)(), "the spin kernel");
}

void Spin::launch(CUstream stream, std::uint64_t duration_ns) const {
  if (kernel_ == nullptr) {
    prepare(bind<SimulatedSpin>("cusim_launch_spin")(stream, duration_ns), "cusim_launch_spin");
    return;
  }
  void* parameters[] = {&duration_ns};
  prepare(CU(cuLaunchKernel)(kernel_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel");
}

}  // namespace probe
