// How contexts and threads end: a context that an illegal access has broken and what of it spreads, a thread whose own stream captures, the last
// holder of a primary context while another comes. A process of its own: what is broken here may stay broken.
#include <thread>

#include "tests/gpu/probes/physical.hpp"
#include "tests/gpu/probes/probe.hpp"
#include "tests/gpu/probes/streams.hpp"
#include "tests/gpu/probes/work.hpp"

namespace probe {
namespace {

using SimulatedBreak = void(int, CUresult);

constexpr char kFaultPtx[] = R"(.version 7.0
.target sm_75
.address_size 64
.visible .entry fault()
{
  .reg .u64 %nowhere;
  .reg .u32 %value;
  mov.u64 %nowhere, 0;
  mov.u32 %value, 1;
  st.global.u32 [%nowhere], %value;
  ret;
}
)";

void break_current(CUdevice device) {
  if (find_symbol("cusim_break_device") != nullptr) return bind<SimulatedBreak>("cusim_break_device")(device, CUDA_ERROR_ILLEGAL_ADDRESS);
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  prepare(CU(cuModuleLoadData)(&module, kFaultPtx), "cuModuleLoadData of the faulting kernel");
  prepare(CU(cuModuleGetFunction)(&kernel, module, "fault"), "cuModuleGetFunction");
  prepare(CU(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), "cuLaunchKernel");
}

void ask_thread_end(const Session& session) {
  for (const auto& [mode, name] :
       {std::pair{CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "thread-local"}, std::pair{CU_STREAM_CAPTURE_MODE_GLOBAL, "global"}}) {
    const std::string words = std::string("a thread ended while its own stream captured, ") + name + ": ";
    std::thread([&session, mode = mode] {
      prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
      static_cast<void>(CU(cuStreamBeginCapture_v2)(CU_STREAM_PER_THREAD, mode));
    }).join();
    CUevent event = nullptr;
    CUdeviceptr address = 0;
    prepare(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    answer(words + "cuCtxRecordEvent", CU(cuCtxRecordEvent)(session.context, event));
    answer(words + "cuCtxSynchronize", CU(cuCtxSynchronize)());
    const CUresult taken = CU(cuMemAlloc_v2)(&address, 4096);
    answer(words + "cuMemAlloc", taken);
    if (taken == CUDA_SUCCESS) answer(words + "cuMemFree", CU(cuMemFree_v2)(address));
    CU(cuEventDestroy_v2)(event);
  }
}

void ask_last_release(Session& session) {
  CUmemoryPool pool_before = nullptr, pool_between = nullptr, pool_after = nullptr;
  const bool has_pools =
      find_symbol("cuDeviceGetDefaultMemPool") != nullptr && CU(cuDeviceGetDefaultMemPool)(&pool_before, session.device) == CUDA_SUCCESS;
  CUdeviceptr of_pool = 0;
  if (has_pools) {
    const Stream stream;
    prepare(CU(cuMemAllocAsync)(&of_pool, 1 << 20, stream), "cuMemAllocAsync");
    stream.synchronize();
  }
  prepare(CU(cuDevicePrimaryCtxReset_v2)(session.device), "cuDevicePrimaryCtxReset");
  prepare(CU(cuDevicePrimaryCtxRelease_v2)(session.device), "cuDevicePrimaryCtxRelease");
  unsigned flags = 0;
  int active = 0;
  if (has_pools) prepare(CU(cuDeviceGetDefaultMemPool)(&pool_between, session.device), "cuDeviceGetDefaultMemPool");
  CU(cuDevicePrimaryCtxGetState)(session.device, &flags, &active);
  unsigned version = 0;
  answer("a primary context after its last release: it lives", CU(cuCtxGetApiVersion)(session.context, &version) == CUDA_SUCCESS, false);
  answer("cuDeviceGetDefaultMemPool begins a context", active != 0, false);
  prepare(CU(cuDevicePrimaryCtxRetain)(&session.context, session.device), "cuDevicePrimaryCtxRetain");
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  if (has_pools) {
    prepare(CU(cuDeviceGetDefaultMemPool)(&pool_after, session.device), "cuDeviceGetDefaultMemPool");
    answer("the default memory pool after a reset has the same handle", pool_after == pool_before);
    answer("the default memory pool keeps its handle when a context begins", pool_after == pool_between);
  }
  if (has_pools) {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    const CUresult found = CU(cuMemGetAddressRange_v2)(&base, &bytes, of_pool);
    answer("memory of a pool after the reset of its primary context: cuMemGetAddressRange", found);
    if (found == CUDA_SUCCESS) answer("memory of a pool after the reset of its primary context: cuMemFree", CU(cuMemFree_v2)(of_pool));
  }
  const Spin spin;
  spin.launch(nullptr, 50'000'000);
  CUresult released = CUDA_SUCCESS;
  CUcontext again = nullptr;
  std::thread other([&] { released = CU(cuDevicePrimaryCtxRelease_v2)(session.device); });
  const CUresult retained = CU(cuDevicePrimaryCtxRetain)(&again, session.device);
  other.join();
  answer("a retain beside the last release: the release", released, CUDA_SUCCESS);
  answer("a retain beside the last release: the retain", retained, CUDA_SUCCESS);
  CUdeviceptr address = 0;
  answer("a retain beside the last release: cuCtxSetCurrent afterwards", CU(cuCtxSetCurrent)(again), CUDA_SUCCESS);
  answer("a retain beside the last release: cuMemAlloc afterwards", CU(cuMemAlloc_v2)(&address, 4096), CUDA_SUCCESS);
  session.context = again;
}

/// What brings pages in a context that an illegal access has broken: where these calls do not tell, the program is served and hears of it from its next call.
void ask_mapping(CUdevice device) {
  constexpr std::size_t kPage_bytes = 2 << 20;
  const CUmemAllocationProp properties = physical_properties(device);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  std::size_t free_bytes = 0, total_bytes = 0;
  answer("a broken context: cuMemAddressReserve", CU(cuMemAddressReserve)(&address, kPage_bytes, 0, 0, 0), CUDA_SUCCESS);
  answer("a broken context: cuMemCreate", CU(cuMemCreate)(&handle, kPage_bytes, &properties, 0), CUDA_SUCCESS);
  answer("a broken context: cuMemMap", CU(cuMemMap)(address, kPage_bytes, 0, handle, 0), CUDA_SUCCESS);
  answer("a broken context: cuMemSetAccess", grant(address, kPage_bytes, device), CUDA_SUCCESS);
  answer("a broken context: cuMemGetInfo", CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/// Last: it may take the process along.
void ask_broken(const Session& session) {
  OtherContext broken(session);
  CUdeviceptr theirs = 0, mine = 0;
  prepare(CU(cuMemAlloc_v2)(&theirs, 1 << 20), "cuMemAlloc");
  break_current(session.device);
  answer("a broken context: cuCtxSynchronize", CU(cuCtxSynchronize)(), CUDA_ERROR_ILLEGAL_ADDRESS);
  answer("a broken context: cuMemAlloc", CU(cuMemAlloc_v2)(&mine, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
  ask_mapping(session.device);
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  answer("another context beside a broken one: cuMemAlloc", CU(cuMemAlloc_v2)(&mine, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
  answer("another context beside a broken one: cuCtxSynchronize", CU(cuCtxSynchronize)(), CUDA_ERROR_ILLEGAL_ADDRESS);
  answer("another context beside a broken one: cuMemFree of the broken one's block", CU(cuMemFree_v2)(theirs));
  const CUcontext handle = broken;
  broken.forget();
  answer("a broken context: cuCtxDestroy", CU(cuCtxDestroy_v2)(handle));
  unsigned version = 0;
  answer("a broken context was destroyed: it lives", CU(cuCtxGetApiVersion)(handle, &version) == CUDA_SUCCESS, false);
  CUcontext next = nullptr;
  answer("a broken context was destroyed: cuCtxCreate", CU(cuCtxCreate_v2)(&next, 0, session.device), CUDA_ERROR_ILLEGAL_ADDRESS);
  answer("a broken context was destroyed: cuMemAlloc in a new one", CU(cuMemAlloc_v2)(&mine, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace

void ask_lives(Session& session) {
  group("the last release", [&] { ask_last_release(session); });
  group("a broken context", [&] { ask_broken(session); });
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  group("a thread's own capture", [&] { ask_thread_end(session); });
}

}  // namespace probe
