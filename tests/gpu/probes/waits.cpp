// For whose work a call waits: which contexts a free waits for, whether an event of a context covers a stream that was
// destroyed with work on it, and whether a context, a stream or a pool waits for its own work when it ends.
#include "tests/gpu/probes/busy.hpp"

namespace probe {
namespace {

/// Two contexts of the device, each with a stream to work on. `second` dies with the scope.
struct TwoContexts {
  explicit TwoContexts(const Session& session) : first(session.context), second(session) {}
  CUcontext first;
  OtherContext second;
  Busy work_of_second;  // made while `second` is current
};

void make_current(CUcontext context) { prepare(CU(cuCtxSetCurrent)(context), "cuCtxSetCurrent"); }

/// cuMemFree of a block of `owner` while `current` is current and a stream of `working` works.
void ask_free(const std::string& words, const char* assumed, CUcontext owner, CUcontext current, CUcontext working, const Busy& work) {
  group(words.c_str(), [&] {
    make_current(owner);
    CUdeviceptr address = 0;
    prepare(CU(cuMemAlloc_v2)(&address, 4 << 20), "cuMemAlloc");
    make_current(working);
    work.launch();
    make_current(current);
    work.tell("cuMemFree: " + words, assumed, [&] { return CU(cuMemFree_v2)(address); });
  });
}

void ask_which_contexts(const Session& session) {
  const Busy work_of_first;
  TwoContexts both(session);
  const CUcontext first = both.first, second = both.second;
  ask_free("owner and current A, work in A", kWaited, first, first, first, work_of_first);
  ask_free("owner A, current B, work in A", kWaited, first, second, first, work_of_first);
  ask_free("owner A, current B, work in B", kReturned, first, second, second, both.work_of_second);
  ask_free("owner and current A, work in B", kReturned, first, first, second, both.work_of_second);
  make_current(second);
  both.work_of_second.forget();  // ends with its context
  both.second.destroy();
  int devices = 0;
  prepare(CU(cuDeviceGetCount)(&devices), "cuDeviceGetCount");
  if (devices < 2) leave_out("cuMemFree: work on another device, with and without peer access", "there is one device");
}

void ask_stream_ordered_calls(const Session& session) {
  const Busy busy;
  const Stream own;
  keep_freed_bytes(default_pool(session.device), ~std::uint64_t{0});
  CUdeviceptr address = 0;
  busy.ask("cuMemAllocAsync of 64 MiB", kReturned, [&] { return CU(cuMemAllocAsync)(&address, 64 << 20, own); });
  busy.ask("cuMemFreeAsync of 64 MiB", kReturned, [&] { return CU(cuMemFreeAsync)(address, own); });
  CUdeviceptr plain = 0;
  prepare(CU(cuMemAlloc_v2)(&plain, 4 << 20), "cuMemAlloc");
  busy.ask("cuMemFreeAsync of cuMemAlloc memory", nullptr, [&] { return CU(cuMemFreeAsync)(plain, own); });
  address = take_async(4 << 20, own);
  own.synchronize();
  busy.ask("cuMemFree of stream-ordered memory", nullptr, [&] { return CU(cuMemFree_v2)(address); });
  address = take_async(4 << 20, busy.stream());
  busy.ask("cuMemFree of memory allocated on that stream", nullptr, [&] { return CU(cuMemFree_v2)(address); });
}

/// Trimming what is kept for graphs: must not wait for other work, nor take what a graph that has been launched still needs.
void ask_graph_trim(CUdevice device) {
  constexpr std::size_t kBytes = 64 << 20;
  const Busy busy;
  const Stream own;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  prepare(CU(cuStreamBeginCapture_v2)(own, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  const CUdeviceptr address = take_async(kBytes, own);
  prepare(CU(cuMemsetD8Async)(address, 1, kBytes, own), "cuMemsetD8Async");
  prepare(CU(cuMemFreeAsync)(address, own), "cuMemFreeAsync");
  prepare(CU(cuStreamEndCapture)(own, &graph), "cuStreamEndCapture");
  prepare(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  const auto kept = [&] {
    cuuint64_t bytes = 0;
    prepare(CU(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes), "cuDeviceGetGraphMemAttribute");
    return bytes >= kBytes;
  };
  prepare(CU(cuGraphLaunch)(exec, own), "cuGraphLaunch");
  own.synchronize();
  busy.ask("cuDeviceGraphMemTrim", kReturned, [&] { return CU(cuDeviceGraphMemTrim)(device); });
  answer("cuDeviceGraphMemTrim while a graph that has run is still instantiated: its bytes are kept", kept());
  busy.launch();
  prepare(CU(cuGraphLaunch)(exec, busy.stream()), "cuGraphLaunch");
  busy.tell("cuDeviceGraphMemTrim, a launched graph behind the work", kReturned, [&] { return CU(cuDeviceGraphMemTrim)(device); });
  answer("cuDeviceGraphMemTrim while a graph waits to run: its bytes are kept", kept(), true);
  prepare(CU(cuGraphExecDestroy)(exec), "cuGraphExecDestroy");
  prepare(CU(cuGraphDestroy)(graph), "cuGraphDestroy");
  prepare(CU(cuDeviceGraphMemTrim)(device), "cuDeviceGraphMemTrim");
}

/// What the pool frees in order to wait while something captures: the size and the kind of the block must not matter.
void ask_frees_that_wait() {
  const Busy busy;
  const Stream captured;
  const auto ask = [&](const std::string& what, CUdeviceptr block, bool in_capture) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUgraph graph = nullptr;
    prepare(CU(cuThreadExchangeStreamCaptureMode)(&mode), "cuThreadExchangeStreamCaptureMode");
    if (in_capture) prepare(CU(cuStreamBeginCapture_v2)(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    busy.ask("cuMemFree of " + what, kWaited, [&] { return CU(cuMemFree_v2)(block); });
    if (in_capture) prepare(CU(cuStreamEndCapture)(captured, &graph), "cuStreamEndCapture");
    if (graph != nullptr) CU(cuGraphDestroy)(graph);
    prepare(CU(cuThreadExchangeStreamCaptureMode)(&mode), "cuThreadExchangeStreamCaptureMode");
  };
  for (const bool in_capture : {false, true}) {
    const std::string where = in_capture ? ", while another stream captures" : "";
    CUdeviceptr small = 0, managed = 0;
    prepare(CU(cuMemAlloc_v2)(&small, 512), "cuMemAlloc");
    ask("512 bytes" + where, small, in_capture);
    prepare(CU(cuMemAllocManaged)(&managed, 64 << 10, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
    ask("untouched managed memory" + where, managed, in_capture);
  }
}

/// A stream may be destroyed with work on it; an event recorded for its context afterwards must cover that work.
void ask_destroyed_stream(const Session& session) {
  const Spin spin;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  prepare(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  prepare(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  spin.launch(stream, 5 * kWork_ns);
  const std::uint64_t start = now_ns();
  prepare(CU(cuStreamDestroy_v2)(stream), "cuStreamDestroy");
  const std::uint64_t destroyed_ns = now_ns() - start;
  prepare(CU(cuCtxRecordEvent)(session.context, event), "cuCtxRecordEvent");
  const CUresult found = CU(cuEventQuery)(event);
  const bool in_time = now_ns() - start < 4 * kWork_ns;
  prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
  answer("cuStreamDestroy with 100 ms of work: host time in ns", destroyed_ns);
  if (!in_time) return leave_out("cuCtxRecordEvent covers the work of a destroyed stream", "cuStreamDestroy took as long as the work, or nearly");
  answer("cuCtxRecordEvent covers the work of a destroyed stream", found == CUDA_ERROR_NOT_READY, true);
}

/// Does waiting for a stream cover the work of one that it is ordered with implicitly, where nothing was put into it since?
void ask_implicit_order() {
  const Spin spin;
  CUstream blocking = nullptr;
  prepare(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT), "cuStreamCreate");
  const auto ask = [&](const std::string& question, CUstream works, auto&& call) {
    spin.launch(works, kWork_ns);
    const CUresult code = call();
    const bool is_over = CU(cuStreamQuery)(works) == CUDA_SUCCESS;
    prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
    answer(question + ": code", code);
    answer(question, is_over ? kWaited : kReturned);
  };
  const auto synchronize = [](CUstream stream) { return [stream] { return CU(cuStreamSynchronize)(stream); }; };
  const auto query = [](CUstream stream) { return [stream] { return CU(cuStreamQuery)(stream); }; };
  ask("cuStreamSynchronize of a blocking stream with nothing in it while the legacy stream works", CU_STREAM_LEGACY, synchronize(blocking));
  ask("cuStreamQuery of a blocking stream with nothing in it while the legacy stream works", CU_STREAM_LEGACY, query(blocking));
  ask("cuStreamSynchronize of the legacy stream with nothing in it while a blocking stream works", blocking, synchronize(CU_STREAM_LEGACY));
  ask("cuStreamQuery of the legacy stream with nothing in it while a blocking stream works", blocking, query(CU_STREAM_LEGACY));
  CUdeviceptr address = 0;
  prepare(CU(cuMemAllocAsync)(&address, 1 << 20, blocking), "cuMemAllocAsync");
  ask("cuStreamSynchronize of a blocking stream with nothing but a cuMemFreeAsync in it while the legacy stream works", CU_STREAM_LEGACY, [&] {
    prepare(CU(cuMemFreeAsync)(address, blocking), "cuMemFreeAsync");
    return CU(cuStreamSynchronize)(blocking);
  });
  prepare(CU(cuStreamDestroy_v2)(blocking), "cuStreamDestroy");
}

void ask_ends(const Session& session) {
  TwoContexts both(session);
  const Busy& work = both.work_of_second;
  const std::uint64_t start = now_ns();
  work.launch();
  both.work_of_second.forget();
  both.second.destroy();
  answer("cuCtxDestroy with 20 ms of work takes at least as long", now_ns() - start >= kWork_ns);
}

}  // namespace

void ask_waits(Session& session) {
  group("which contexts a free waits for", [&] { ask_which_contexts(session); });
  make_current(session.context);
  group("stream-ordered calls", [&] { ask_stream_ordered_calls(session); });
  group("a trim of what is kept for graphs", [&] { ask_graph_trim(session.device); });
  group("frees that wait", [&] { ask_frees_that_wait(); });
  group("a destroyed stream", [&] { ask_destroyed_stream(session); });
  group("streams that are ordered implicitly", [&] { ask_implicit_order(); });
  group("a context that ends with work", [&] { ask_ends(session); });
}

}  // namespace probe
