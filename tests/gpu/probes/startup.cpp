// What the simulated driver has to guess of a real one beside memory: limits and version of an untouched context, what a
// module takes, names that do not exist, work in a stream of another context, parts of mappings.
#include "tests/gpu/probes/busy.hpp"
#include "tests/gpu/probes/physical.hpp"

namespace probe {
namespace {

constexpr char kEmptyPtx[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n";

void ask_untouched_context(const Session& session) {
  unsigned version = 0;
  prepare(CU(cuCtxGetApiVersion)(session.context, &version), "cuCtxGetApiVersion");
  answer("cuCtxGetApiVersion of the primary", version);
  constexpr std::pair<CUlimit, const char*> kLimits[] = {{CU_LIMIT_STACK_SIZE, "STACK_SIZE"},
                                                         {CU_LIMIT_PRINTF_FIFO_SIZE, "PRINTF_FIFO_SIZE"},
                                                         {CU_LIMIT_MALLOC_HEAP_SIZE, "MALLOC_HEAP_SIZE"},
                                                         {CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, "DEV_RUNTIME_SYNC_DEPTH"},
                                                         {CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, "DEV_RUNTIME_PENDING_LAUNCH_COUNT"},
                                                         {CU_LIMIT_MAX_L2_FETCH_GRANULARITY, "MAX_L2_FETCH_GRANULARITY"},
                                                         {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, "PERSISTING_L2_CACHE_SIZE"}};
  for (const auto& [limit, name] : kLimits) {
    std::size_t value = 0;
    const CUresult code = CU(cuCtxGetLimit)(&value, limit);
    if (code == CUDA_SUCCESS) answer(std::string("cuCtxGetLimit of ") + name, value);
    else answer(std::string("cuCtxGetLimit of ") + name, code);
  }
}

void ask_module() {
  const std::size_t before = free_bytes();
  const bool is_simulated = find_symbol("cusim_launch_spin") != nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUmoduleLoadingMode mode{};
  prepare(CU(cuModuleGetLoadingMode)(&mode), "cuModuleGetLoadingMode");
  answer("modules load lazily", mode == CU_MODULE_LAZY_LOADING);
  prepare(CU(cuModuleLoadData)(&module, kEmptyPtx), "cuModuleLoadData");
  answer("bytes of the device that loading a module takes", before - std::min(before, free_bytes()));
  if (is_simulated) leave_out("bytes of the device taken once its function is known", "the simulated driver has no kernels");
  else prepare(CU(cuModuleGetFunction)(&function, module, "nothing"), "cuModuleGetFunction");
  if (!is_simulated) answer("bytes of the device taken once its function is known", before - std::min(before, free_bytes()));
  prepare(CU(cuModuleUnload)(module), "cuModuleUnload");
  answer("bytes of the device still taken after cuModuleUnload", before - std::min(before, free_bytes()));
}

void ask_unknown_names() {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  answer("cuGetProcAddress of a name that does not exist", CU(cuGetProcAddress_v2)("cuNothingOfThatName", &found, 13000, 0, &status));
  answer("cuGetProcAddress of a name that does not exist: symbolStatus", static_cast<int>(status));
  answer("cuGetProcAddress of a name that is newer than the version asked for", CU(cuGetProcAddress_v2)("cuMemAllocAsync", &found, 3020, 0, &status));
  answer("cuGetProcAddress of a name that is newer than the version asked for: symbolStatus", static_cast<int>(status));
}

/// The primary is current, the stream belongs to another context.
void ask_stream_of_other_context(const Session& session) {
  const Memory memory(4096);
  OtherContext other(session);
  CUstream theirs = nullptr;
  CUevent event = nullptr;
  prepare(CU(cuStreamCreate)(&theirs, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  prepare(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  answer("stream of another context: cuMemsetD8Async", CU(cuMemsetD8Async)(memory.address(), 1, 4096, theirs));
  answer("stream of another context: cuEventRecord of an event of the current one", CU(cuEventRecord)(event, theirs));
  answer("stream of another context: cuStreamWaitEvent", CU(cuStreamWaitEvent)(theirs, event, 0));
  answer("stream of another context: cuStreamSynchronize", CU(cuStreamSynchronize)(theirs));
  try {
    const Spin spin;  // its kernel is the primary's
    spin.launch(theirs, 1000);
    answer("stream of another context: launching a kernel of the current one", CUDA_SUCCESS);
  } catch (const Unprepared& error) {
    answer("stream of another context: launching a kernel of the current one", error.what());
  }
  static_cast<void>(CU(cuEventDestroy_v2)(event));
}

void ask_parts_of_mappings(const Session& session) {
  constexpr std::size_t kPage_bytes = 2 << 20;
  const CUmemAllocationProp properties = physical_properties(session.device);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  prepare(CU(cuMemAddressReserve)(&address, 4 * kPage_bytes, 0, 0, 0), "cuMemAddressReserve");
  prepare(CU(cuMemCreate)(&handle, 2 * kPage_bytes, &properties, 0), "cuMemCreate");
  const CUresult part = CU(cuMemMap)(address, kPage_bytes, 0, handle, 0);
  answer("cuMemMap of the first half of a handle", part);
  if (part == CUDA_SUCCESS) prepare(CU(cuMemUnmap)(address, kPage_bytes), "cuMemUnmap");
  answer("cuMemMap from the middle of a handle", CU(cuMemMap)(address, kPage_bytes, kPage_bytes, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  prepare(CU(cuMemRelease)(handle), "cuMemRelease");
  prepare(CU(cuMemAddressFree)(address, 4 * kPage_bytes), "cuMemAddressFree");
  Mapping mapping(session.device, 4 * kPage_bytes, 4);
  answer("cuMemUnmap of four neighbouring mappings at once", mapping.unmap(), CUDA_SUCCESS);
  const Mapping whole(session.device, 4 * kPage_bytes, 2);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUcontext owner = nullptr;
  const CUresult code = CU(cuMemGetAddressRange_v2)(&base, &bytes, whole.address());
  answer("cuMemGetAddressRange of a mapping of two handles", code);
  if (code == CUDA_SUCCESS) answer("cuMemGetAddressRange of a mapping of two handles of 4 MiB: size", bytes);
  const CUresult owned = CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, whole.address());
  answer("CONTEXT of mapped memory", owned);
  if (owned == CUDA_SUCCESS) answer("CONTEXT of mapped memory is none", owner == nullptr);
}

}  // namespace

void ask_startup(Session& session) {
  group("an untouched context", [&] { ask_untouched_context(session); });
  group("modules", ask_module);
  group("names that do not exist", ask_unknown_names);
  group("a stream of another context", [&] { ask_stream_of_other_context(session); });
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  group("parts of mappings", [&] { ask_parts_of_mappings(session); });
}

}  // namespace probe
