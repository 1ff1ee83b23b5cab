// Making situations and taking them down again. Everything is allocated before a capture begins or a context dies.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "battery.hpp"
#include "cusim.h"
#include "worker.hpp"

namespace battery {
namespace {

#define MUST(call) must((call), #call, __LINE__)
void must(CUresult result, const char* what, int line) {
  if (result == CUDA_SUCCESS) return;
  std::printf("battery line %d: %s gave %d\n", line, what, static_cast<int>(result));
  std::fflush(stdout);
  _exit(99);
}

Worker& other_thread() {
  static Worker* const worker = new Worker;  // ends with the process
  return *worker;
}

alignas(4096) unsigned char registered_page[64 * kKiB];

bool is_captured(Situation s) { return s >= Situation::captured_global && s <= Situation::captured_elsewhere; }
bool is_capturing(Situation s) { return s == Situation::capturing_global || s == Situation::capturing_relaxed; }

CUstreamCaptureMode mode_of(Situation s) {
  if (s == Situation::captured_thread) return CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  const bool is_relaxed = s == Situation::captured_relaxed || s == Situation::capturing_relaxed;
  return is_relaxed ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUmemPoolProps pool_properties(CUdevice device, bool is_exportable) {
  CUmemPoolProps properties;
  std::memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  if (is_exportable) properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

void make_green(World& w) {
  CUdevResource resource;
  CUdevResourceDesc description = nullptr;
  MUST(cuDeviceGetDevResource(w.device, &resource, CU_DEV_RESOURCE_TYPE_SM));
  MUST(cuDevResourceGenerateDesc(&description, &resource, 1));
  MUST(cuGreenCtxCreate(&w.green, description, w.device, CU_GREEN_CTX_DEFAULT_STREAM));
}

void make_contexts(World& w) {
  CUcontext primary = nullptr, created = nullptr, of_second = nullptr, popped = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuDevicePrimaryCtxRetain(&of_second, 1));
  MUST(cuCtxCreate_v2(&created, 0, 0));
  MUST(cuCtxPopCurrent_v2(&popped));
  MUST(cuCtxCreate_v2(&w.dead_context, 0, 0));
  MUST(cuMemAlloc_v2(&w.block_of_dead, kMiB));
  MUST(cuCtxDestroy_v2(w.dead_context));
  const bool is_second = w.situation == Situation::second_device;
  const bool is_created = w.situation == Situation::created || w.situation == Situation::destroyed || w.situation == Situation::broken;
  w.device = is_second ? 1 : 0;
  w.other_device = 1 - w.device;
  w.current = is_second ? of_second : is_created ? created : primary;
  w.other = is_created ? primary : created;
  w.elsewhere = is_second ? primary : of_second;
  if (w.situation == Situation::green) {
    make_green(w);
    MUST(cuCtxFromGreenCtx(&w.current, w.green));
  }
  MUST(cuCtxSetCurrent(w.current));
}

/// In `context`: a stream, and a block.
void furnish(CUcontext context, CUstream* stream, CUdeviceptr* block) {
  CUcontext popped = nullptr;
  MUST(cuCtxPushCurrent_v2(context));
  MUST(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAlloc_v2(block, kMiB));
  MUST(cuCtxPopCurrent_v2(&popped));
}

void make_streams(World& w) {
  if (w.green != nullptr) {
    MUST(cuGreenCtxStreamCreate(&w.stream, w.green, CU_STREAM_NON_BLOCKING, 0));
    MUST(cuGreenCtxStreamCreate(&w.second_stream, w.green, CU_STREAM_NON_BLOCKING, 0));
    MUST(cuGreenCtxStreamCreate(&w.dead_stream, w.green, CU_STREAM_NON_BLOCKING, 0));
  } else {
    MUST(cuStreamCreate(&w.stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&w.second_stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&w.dead_stream, CU_STREAM_NON_BLOCKING));
  }
  MUST(cuStreamDestroy_v2(w.dead_stream));
}

void make_pools(World& w) {
  CUmemPoolProps properties = pool_properties(w.device, false);
  MUST(cuDeviceGetDefaultMemPool(&w.default_pool, w.device));
  MUST(cuDeviceGetDefaultMemPool(&w.pool_elsewhere, w.other_device));
  MUST(cuMemPoolCreate(&w.plain_pool, &properties));
  MUST(cuMemPoolCreate(&w.dead_pool, &properties));
  MUST(cuMemPoolDestroy(w.dead_pool));
  properties = pool_properties(w.device, true);
  MUST(cuMemPoolCreate(&w.special_pool, &properties));
}

void make_mapping(World& w) {
  CUmemAllocationProp properties;
  std::memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = w.device;
  CUmemAccessDesc access;
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuMemCreate(&w.physical, 2 * kMiB, &properties, 0));
  MUST(cuMemAddressReserve(&w.reserved, 4 * kMiB, 0, 0, 0));
  MUST(cuMemMap(w.reserved, 2 * kMiB, 0, w.physical, 0));
  MUST(cuMemSetAccess(w.reserved, 2 * kMiB, &access, 1));
  w.mapped = w.reserved;
}

void make_arrays(World& w) {
  CUDA_ARRAY3D_DESCRIPTOR description;
  std::memset(&description, 0, sizeof description);
  description.Width = description.Height = 64;
  description.Format = CU_AD_FORMAT_FLOAT;
  description.NumChannels = 1;
  MUST(cuArray3DCreate_v2(&w.array, &description));
  MUST(cuMipmappedArrayCreate(&w.mipmap, &description, 3));
}

void make_graph(World& w) {
  MUST(cuStreamBeginCapture_v2(w.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemsetD8Async(w.managed, 1, 100, w.stream));  // reachable from every device
  MUST(cuStreamEndCapture(w.stream, &w.graph));
  MUST(cuGraphInstantiateWithFlags(&w.executable, w.graph, 0));
}

void make_memory(World& w) {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc_v2(&w.block, kMiB));
  MUST(cuMemAlloc_v2(&w.small, 1000));
  MUST(cuMemAllocAsync(&w.stream_block, kMiB, w.stream));
  MUST(cuMemAllocFromPoolAsync(&w.plain_pool_block, kMiB, w.plain_pool, w.stream));
  MUST(cuMemAllocFromPoolAsync(&w.special_pool_block, kMiB, w.special_pool, w.stream));
  MUST(cuMemAllocManaged(&w.managed, kMiB, CU_MEM_ATTACH_GLOBAL));
  MUST(cuMemHostAlloc(&w.host, kMiB, 0));
  w.registered = registered_page;
  MUST(cuMemHostRegister_v2(w.registered, sizeof registered_page, 0));
  make_mapping(w);
  make_arrays(w);
  make_graph(w);
  MUST(cuMemAlloc_v2(&block, kMiB));
  MUST(cuMemAllocAsync(&w.freed_stream_block, kMiB, w.stream));
  MUST(cuMemFree_v2(block));  // the last: what is freed is given to nobody else
  w.freed = block;
  MUST(cuMemFreeAsync(w.freed_stream_block, w.stream));
  MUST(cuStreamSynchronize(w.stream));
  MUST(cuCtxSynchronize());
}

using LaunchSpin = CUresult (*)(CUstream, std::uint64_t);
using Advance = void (*)(std::uint64_t);
using BreakContext = void (*)(CUcontext, CUresult);

/// Functions of the simulated driver; the battery needs them for work that runs and for errors that stick.
template <class Function> Function control(const char* name) {
  void* const function = dlsym(RTLD_DEFAULT, name);
  if (function == nullptr) must(CUDA_ERROR_NOT_FOUND, name, __LINE__);
  return reinterpret_cast<Function>(function);
}

void begin_capture(World& w, CUstream stream) {
  const CUstreamCaptureMode mode = mode_of(w.situation);
  if (w.situation != Situation::captured_elsewhere) return MUST(cuStreamBeginCapture_v2(stream, mode));
  other_thread().run([&] {
    MUST(cuCtxSetCurrent(w.current));
    MUST(cuStreamBeginCapture_v2(stream, mode));
  });
}

/// The last step, behind which nothing of the battery's own is called.
void take_place(World& w) {
  if (is_captured(w.situation)) begin_capture(w, w.second_stream);
  if (is_capturing(w.situation)) begin_capture(w, w.stream);
  switch (w.situation) {
    case Situation::no_context:
      MUST(cuCtxSetCurrent(nullptr));
      w.other = w.current;
      w.current = nullptr;
      break;
    case Situation::busy: MUST(control<LaunchSpin>("cusim_launch_spin")(w.stream, 1'000'000)); break;
    case Situation::destroyed: other_thread().run([&] { MUST(cuCtxDestroy_v2(w.current)); }); break;
    case Situation::broken: control<BreakContext>("cusim_break_context")(w.current, CUDA_ERROR_ILLEGAL_ADDRESS); break;
    default: break;
  }
}

void end_captures(const World& w) {
  CUgraph graph = nullptr;
  for (CUstream stream : {w.stream, w.second_stream}) {
    if (w.situation == Situation::captured_elsewhere) other_thread().run([&] { static_cast<void>(cuStreamEndCapture(stream, &graph)); });
    else static_cast<void>(cuStreamEndCapture(stream, &graph));
  }
}

/// Memory of pools outlives the contexts that are destroyed. False: the process has met an illegal access, and nothing can be freed any more.
bool free_pooled(const World& w, std::vector<CUdeviceptr> given) {
  CUcontext context = nullptr;
  const CUresult retained = cuDevicePrimaryCtxRetain(&context, 0);
  if (retained == CUDA_ERROR_ILLEGAL_ADDRESS) return false;
  MUST(retained);
  MUST(cuCtxPushCurrent_v2(context));
  given.insert(given.end(), {w.stream_block, w.plain_pool_block, w.special_pool_block});
  for (CUdeviceptr address : given) {
    CUmemoryPool pool = nullptr;
    if (cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == CUDA_SUCCESS && pool != nullptr)
      static_cast<void>(cuMemFree_v2(address));
  }
  static_cast<void>(cuCtxSynchronize());
  MUST(cuCtxPopCurrent_v2(&context));
  MUST(cuDevicePrimaryCtxRelease_v2(0));
  return true;
}

}  // namespace

const char* name_of(Situation situation) {
  constexpr const char* kNames[] = {"uninitialised",
                                    "no context",
                                    "primary",
                                    "created",
                                    "second device",
                                    "green",
                                    "busy",
                                    "captured global",
                                    "captured thread",
                                    "captured relaxed",
                                    "captured elsewhere",
                                    "capturing global",
                                    "capturing relaxed",
                                    "destroyed",
                                    "broken"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Situation::kCount));
  return kNames[static_cast<std::size_t>(situation)];
}

void enter(World& w, Situation situation) {
  w.situation = situation;
  if (situation == Situation::uninitialised) return;
  MUST(cuInit(0));
  make_contexts(w);
  make_streams(w);
  make_pools(w);
  furnish(w.other, &w.stream_of_other, &w.block_of_other);
  furnish(w.elsewhere, &w.stream_elsewhere, &w.block_elsewhere);
  make_memory(w);
  take_place(w);
}

void let_gpu_finish() { control<Advance>("cusim_advance_ns")(1'000'000'000); }

bool leave(World& w, const std::vector<CUdeviceptr>& given) {
  if (w.situation == Situation::uninitialised) return true;
  end_captures(w);
  let_gpu_finish();  // what is still in flight finds its memory
  CUcontext popped = nullptr;
  while (cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS) {}
  for (CUmemoryPool pool : {w.plain_pool, w.special_pool}) static_cast<void>(cuMemPoolDestroy(pool));
  for (CUdevice device : {0, 1}) {
    CUmemoryPool standard = nullptr;
    MUST(cuDeviceGetDefaultMemPool(&standard, device));
    static_cast<void>(cuDeviceSetMemPool(device, standard));
  }
  if (w.green != nullptr) static_cast<void>(cuGreenCtxDestroy(w.green));
  for (CUcontext context : {w.current, w.other}) {
    if (context != nullptr) static_cast<void>(cuCtxDestroy_v2(context));  // refuses what is a primary's
  }
  for (CUdevice device : {0, 1}) {
    static_cast<void>(cuDevicePrimaryCtxReset_v2(device));
    while (cuDevicePrimaryCtxRelease_v2(device) == CUDA_SUCCESS) {}
  }
  const bool goes_on = free_pooled(w, given);
  static_cast<void>(cuMemUnmap(w.reserved, 2 * kMiB));
  static_cast<void>(cuMemRelease(w.physical));
  static_cast<void>(cuMemAddressFree(w.reserved, 4 * kMiB));
  return goes_on;
}

std::string aftermath(const World& w) {
  if (w.situation == Situation::uninitialised) return "";
  CUcontext current = nullptr;
  static_cast<void>(cuCtxGetCurrent(&current));
  std::string text = "current=" + w.label(current) + " captures=";
  for (CUstream stream : {w.stream, w.second_stream}) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = cuStreamIsCapturing(stream, &status);
    text += result != CUDA_SUCCESS ? "e" + std::to_string(result) + "," : std::to_string(status) + ",";
  }
  return text;
}

}  // namespace battery
