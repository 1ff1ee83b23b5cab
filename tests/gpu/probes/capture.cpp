// What may be called while a stream captures: every combination of the capture's mode, the calling thread and the
// thread's own mode, each call in a capture of its own. An answer is the call's code and what became of the capture.
#include <functional>
#include <memory>
#include <thread>

#include "tests/gpu/probes/physical.hpp"

namespace probe {
namespace {

struct Mode {
  const char* name;
  CUstreamCaptureMode value;
};
constexpr Mode kModes[] = {
    {"global", CU_STREAM_CAPTURE_MODE_GLOBAL}, {"thread local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}, {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED}};

/// A call to make during a capture. `assumed_relaxed`: what the pool relies on when the thread's mode is exchanged to relaxed.
struct Call {
  const char* name;
  std::function<CUresult()> make;
  const char* assumed_relaxed = nullptr;
};

struct Rig {
  Session& session;
  CUstream captured = nullptr;
  CUstream other = nullptr;
  CUevent recorded = nullptr;
  CUevent fresh = nullptr;
  CUcontext beside = nullptr;
  CUevent fresh_beside = nullptr;
};

const char* state_of(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CU(cuStreamIsCapturing)(stream, &status);
  if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE) return "capture lives";
  return status == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? "capture invalidated" : "capture gone";
}

std::string make_call(const Rig& rig, const Call& call, bool exchanged) {
  CU(cuCtxSetCurrent)(rig.session.context);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (exchanged) CU(cuThreadExchangeStreamCaptureMode)(&mode);
  const std::string code = error_name(call.make());
  if (exchanged) CU(cuThreadExchangeStreamCaptureMode)(&mode);
  return code + ", " + state_of(rig.captured);
}

std::string ask_once(const Rig& rig, const Call& call, CUstreamCaptureMode mode, bool in_other_thread, bool exchanged) {
  prepare(CU(cuStreamBeginCapture_v2)(rig.captured, mode), "cuStreamBeginCapture");
  std::string result;
  if (in_other_thread) std::thread([&] { result = make_call(rig, call, exchanged); }).join();
  else result = make_call(rig, call, exchanged);
  CUgraph graph = nullptr;
  static_cast<void>(CU(cuStreamEndCapture)(rig.captured, &graph));
  if (graph != nullptr) CU(cuGraphDestroy)(graph);
  return result;
}

CUresult allocate_and_keep(std::vector<CUdeviceptr>& kept) {
  CUdeviceptr address = 0;
  const CUresult code = CU(cuMemAlloc_v2)(&address, 4096);
  if (code == CUDA_SUCCESS) kept.push_back(address);
  return code;
}

CUresult free_one(std::vector<CUdeviceptr>& spare) {
  if (spare.empty()) throw Unprepared("no block left to free");
  const CUresult code = CU(cuMemFree_v2)(spare.back());
  if (code == CUDA_SUCCESS) spare.pop_back();
  return code;
}

CUresult create_and_release(const Session& session) {
  const CUmemAllocationProp properties = physical_properties(session.device);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code = CU(cuMemCreate)(&handle, 2 << 20, &properties, 0);
  if (code == CUDA_SUCCESS) CU(cuMemRelease)(handle);
  return code;
}

CUresult reserve_and_free() {
  CUdeviceptr address = 0;
  const CUresult code = CU(cuMemAddressReserve)(&address, 2 << 20, 0, 0, 0);
  if (code == CUDA_SUCCESS) CU(cuMemAddressFree)(address, 2 << 20);
  return code;
}

/// Unmaps, and maps the same handle there again, so that the next question finds it as it was.
CUresult unmap_and_map(const Session& session, const Mapping& mapping) {
  const CUresult code = CU(cuMemUnmap)(mapping.address(), mapping.bytes());
  if (code != CUDA_SUCCESS) return code;
  const CUresult mapped = CU(cuMemMap)(mapping.address(), mapping.bytes(), 0, mapping.handle(), 0);
  return mapped == CUDA_SUCCESS ? grant(mapping.address(), mapping.bytes(), session.device) : mapped;
}

CUresult make_event() {
  CUevent event = nullptr;
  const CUresult code = CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING);
  if (code == CUDA_SUCCESS) CU(cuEventDestroy_v2)(event);
  return code;
}

CUresult load_module() {
  CUmodule module = nullptr;
  const CUresult code = CU(cuModuleLoadData)(&module, ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n");
  if (code == CUDA_SUCCESS) CU(cuModuleUnload)(module);
  return code;
}

CUresult instantiate_empty() {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUresult code = CU(cuGraphCreate)(&graph, 0);
  if (code != CUDA_SUCCESS) return code;
  code = CU(cuGraphInstantiateWithFlags)(&exec, graph, 0);
  if (exec != nullptr) CU(cuGraphExecDestroy)(exec);
  CU(cuGraphDestroy)(graph);
  return code;
}

/// On a stream that does not capture.
CUresult allocate_ordered(const Rig& rig, std::vector<CUdeviceptr>& kept) {
  CUdeviceptr address = 0;
  const CUresult code = CU(cuMemAllocAsync)(&address, 4096, rig.other);
  if (code == CUDA_SUCCESS) kept.push_back(address);
  return code;
}

CUresult free_ordered(const Rig& rig, std::vector<CUdeviceptr>& spare) {
  if (spare.empty()) throw Unprepared("no stream-ordered block left to free");
  const CUresult code = CU(cuMemFreeAsync)(spare.back(), rig.other);
  if (code == CUDA_SUCCESS) spare.pop_back();
  return code;
}

CUresult trim_pool(const Session& session) {
  CUmemoryPool pool = nullptr;
  const CUresult code = CU(cuDeviceGetDefaultMemPool)(&pool, session.device);
  return code == CUDA_SUCCESS ? CU(cuMemPoolTrimTo)(pool, 0) : code;
}

std::vector<Call> calls(const Rig& rig, std::vector<CUdeviceptr>& kept, std::vector<CUdeviceptr>& spare, std::vector<CUdeviceptr>& ordered,
                        Mapping* mapping) {
  constexpr const char* kServed = "CUDA_SUCCESS, capture lives";
  std::vector<Call> list = {
      {"cuMemAlloc", [&] { return allocate_and_keep(kept); }, kServed},
      {"cuMemFree", [&] { return free_one(spare); }, kServed},
      {"cuEventQuery", [&] { return CU(cuEventQuery)(rig.recorded); }, kServed},
      {"cuEventCreate", make_event, kServed},
      {"cuMemGetInfo",
       [] {
         std::size_t a = 0, b = 0;
         return CU(cuMemGetInfo_v2)(&a, &b);
       },
       kServed},
      {"cuPointerGetAttribute",
       [&] {
         CUcontext c = nullptr;
         return CU(cuPointerGetAttribute)(&c, CU_POINTER_ATTRIBUTE_CONTEXT, spare.at(0));
       },
       kServed},
      {"cuCtxRecordEvent", [&] { return CU(cuCtxRecordEvent)(rig.session.context, rig.fresh); },
       "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, capture invalidated"},
      {"cuCtxRecordEvent in another context", [&] { return CU(cuCtxRecordEvent)(rig.beside, rig.fresh_beside); }, kServed},
      {"cuEventRecord on another stream", [&] { return CU(cuEventRecord)(rig.fresh, rig.other); }, kServed},
      {"cuStreamWaitEvent of another stream", [&] { return CU(cuStreamWaitEvent)(rig.other, rig.recorded, 0); }, kServed},
      {"cuEventRecord on another stream that has just waited for an event from outside",
       [&] {
         const CUresult code = CU(cuStreamWaitEvent)(rig.other, rig.recorded, 0);
         return code == CUDA_SUCCESS ? CU(cuEventRecord)(rig.fresh, rig.other) : code;
       },
       kServed},
      {"cuStreamGetCtx of the capturing stream",
       [&] {
         CUcontext c = nullptr;
         return CU(cuStreamGetCtx)(rig.captured, &c);
       },
       kServed},
      {"cuCtxSynchronize", [] { return CU(cuCtxSynchronize)(); }},
      {"cuStreamSynchronize of another stream", [&] { return CU(cuStreamSynchronize)(rig.other); }},
      {"cuMemAllocAsync on another stream", [&] { return allocate_ordered(rig, kept); }},
      {"cuMemFreeAsync on another stream", [&] { return free_ordered(rig, ordered); }},
      {"cuMemPoolTrimTo", [&] { return trim_pool(rig.session); }},
      {"cuDeviceGraphMemTrim", [&] { return CU(cuDeviceGraphMemTrim)(rig.session.device); }},
      {"cuModuleLoadData", load_module},
      {"cuGraphInstantiate of an empty graph", instantiate_empty},
  };
  if (mapping != nullptr) {
    list.push_back({"cuMemCreate", [&] { return create_and_release(rig.session); }});
    list.push_back({"cuMemAddressReserve", reserve_and_free});
    list.push_back({"cuMemUnmap, cuMemMap and cuMemSetAccess", [&rig, mapping] { return unmap_and_map(rig.session, *mapping); }});
    list.push_back({"cuMemSetAccess", [&rig, mapping] { return grant(mapping->address(), mapping->bytes(), rig.session.device); }});
  }
  return list;
}

void ask_matrix(const Rig& rig, const std::vector<Call>& list) {
  for (const Mode& mode : kModes) {
    for (const Call& call : list) {
      for (const bool in_other_thread : {false, true}) {
        for (const bool exchanged : {false, true}) {
          const std::string question = std::string(call.name) + " during a " + mode.name + " capture, " +
                                       (in_other_thread ? "another thread" : "same thread") + (exchanged ? ", its mode exchanged to relaxed" : "");
          const std::string result = ask_once(rig, call, mode.value, in_other_thread, exchanged);
          if (exchanged && call.assumed_relaxed != nullptr) answer(question, result, call.assumed_relaxed);
          else answer(question, result);
        }
      }
    }
  }
}

}  // namespace

void ask_capture(Session& session) {
  Rig rig{session};
  prepare(CU(cuStreamCreate)(&rig.captured, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  prepare(CU(cuStreamCreate)(&rig.other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  prepare(CU(cuEventCreate)(&rig.recorded, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  prepare(CU(cuEventCreate)(&rig.fresh, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  prepare(CU(cuEventRecord)(rig.recorded, rig.other), "cuEventRecord");
  CUcontext popped = nullptr;
  prepare(CU(cuCtxCreate_v2)(&rig.beside, 0, session.device), "cuCtxCreate");
  prepare(CU(cuEventCreate)(&rig.fresh_beside, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  prepare(CU(cuCtxPopCurrent_v2)(&popped), "cuCtxPopCurrent");
  prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
  std::vector<CUdeviceptr> kept, spare(32), ordered(32);
  for (CUdeviceptr& address : spare) prepare(CU(cuMemAlloc_v2)(&address, 4096), "cuMemAlloc");
  for (CUdeviceptr& address : ordered) prepare(CU(cuMemAllocAsync)(&address, 4096, rig.other), "cuMemAllocAsync");
  prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
  std::unique_ptr<Mapping> mapping;
  group("virtual memory during a capture", [&] { mapping = std::make_unique<Mapping>(session.device, 2 << 20); });
  ask_matrix(rig, calls(rig, kept, spare, ordered, mapping.get()));
  CU(cuCtxDestroy_v2)(rig.beside);
  for (const CUdeviceptr address : ordered) CU(cuMemFree_v2)(address);
  for (const CUdeviceptr address : kept) CU(cuMemFree_v2)(address);
  for (const CUdeviceptr address : spare) CU(cuMemFree_v2)(address);
}

}  // namespace probe
