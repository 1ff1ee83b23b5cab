// Stream capture: what it records, what it forbids in which mode, and how it dies.
#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "sim_fixture.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

namespace {

struct Capturing : Simulated {
  explicit Capturing(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL, unsigned flags = CU_STREAM_NON_BLOCKING)
      : captured(stream(flags)), idle_event(event()) {
    cuStreamBeginCapture_v2(captured, mode);
  }
  CUstreamCaptureStatus status() const {
    CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
    cuStreamIsCapturing(captured, &now);
    return now;
  }
  CUresult end() { return cuStreamEndCapture(captured, &graph); }

  CUstream captured;
  CUevent idle_event;
  CUgraph graph = nullptr;
};

CUresult in_another_thread(CUcontext context, const std::function<CUresult()>& body) {
  CUresult code = CUDA_SUCCESS;
  std::thread([&] {
    cuCtxSetCurrent(context);
    code = body();
  }).join();
  return code;
}

}  // namespace

TEST_CASE("captured work does not run, and runs at each launch of the graph") {
  Capturing sim;
  const CUdeviceptr address = [] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuThreadExchangeStreamCaptureMode(&mode);
    const CUdeviceptr allocated = Simulated::allocate(1000);
    cuThreadExchangeStreamCaptureMode(&mode);
    return allocated;
  }();
  REQUIRE(address != 0);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  REQUIRE(cuMemsetD8Async(address, 4, 1000, sim.captured) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(sim.captured, address, 1000, 4, 100) == CUDA_SUCCESS);
  cusim_advance_ns(100'000);
  REQUIRE(sim.end() == CUDA_SUCCESS);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(cusim_mismatched_bytes() == 0);
  std::size_t count = 0;
  CHECK(cuGraphGetNodes(sim.graph, nullptr, &count) == CUDA_SUCCESS);
  CHECK(count == 2);
  CUgraphExec exec = nullptr;
  REQUIRE(cuGraphInstantiateWithFlags(&exec, sim.graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(sim.graph) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuMemsetD8_v2(address, 9, 1000) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  }
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(cuGraphExecDestroy(exec) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphLaunch(exec, nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("unsafe calls under a global capture fail in every thread, and kill it") {
  Capturing sim;
  CUdeviceptr address = 0;
  SECTION("allocation") { CHECK(cuMemAlloc_v2(&address, 1) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
  SECTION("event query") { CHECK(cuEventQuery(sim.idle_event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
  SECTION("stream synchronisation") { CHECK(cuStreamSynchronize(Simulated::stream()) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
  SECTION("context synchronisation") { CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
  SECTION("pinned memory") {
    void* pinned = nullptr;
    CHECK(cuMemHostAlloc(&pinned, 1, 0) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  SECTION("from another thread") {
    CHECK(in_another_thread(sim.context, [&] { return cuMemAlloc_v2(&address, 1); }) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  CHECK(address == 0);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK(cusim_launch_spin(sim.captured, 1) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(sim.end() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(sim.graph == nullptr);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_CASE("stream-ordered calls beside the capture, trims of pools and instantiating are unsafe; a module loads and kills the capture") {
  const bool is_global = GENERATE(true, false);
  Capturing sim(is_global ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  const CUstream other = Simulated::stream();
  CUdeviceptr address = 0, beside = 0;
  CUmemoryPool pool = nullptr;
  CUgraph empty = nullptr;
  CUgraphExec exec = nullptr;
  CUmodule module = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphCreate(&empty, 0) == CUDA_SUCCESS);
  REQUIRE(in_another_thread(sim.context, [&] {
            CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
            cuThreadExchangeStreamCaptureMode(&relaxed);
            return cuMemAllocAsync(&beside, 1, other);
          }) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(&address, 1, sim.captured) == CUDA_SUCCESS);  // a node
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  std::function<CUresult()> unsafe;
  CUresult answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  SECTION("an allocation") {
    unsafe = [&] { return cuMemAllocAsync(&address, 1, other); };
  }
  SECTION("a free") {
    unsafe = [&] { return cuMemFreeAsync(beside, other); };
  }
  SECTION("a trim") {
    unsafe = [&] { return cuMemPoolTrimTo(pool, 0); };
  }
  SECTION("instantiating") {
    unsafe = [&] { return cuGraphInstantiateWithFlags(&exec, empty, 0); };
  }
  SECTION("a module") {
    unsafe = [&] { return cuModuleLoadData(&module, "an image"); };
    answer = CUDA_SUCCESS;
  }
  if (!is_global) {
    CHECK(in_another_thread(sim.context, [&] { return cuMemPoolTrimTo(pool, 0); }) == CUDA_SUCCESS);
    CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK(unsafe() == answer);
  } else {
    CHECK(in_another_thread(sim.context, unsafe) == answer);
  }
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

TEST_CASE("virtual memory and trims of graph memory disturb no capture") {
  Capturing sim;
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemAccessDesc access{wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr base = 0;
  CHECK(cuMemCreate(&handle, 2 * kMiB, &wanted, 0) == CUDA_SUCCESS);
  CHECK(cuMemAddressReserve(&base, 2 * kMiB, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(base, 2 * kMiB, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemSetAccess(base, 2 * kMiB, &access, 1) == CUDA_SUCCESS);
  CHECK(cuMemUnmap(base, 2 * kMiB) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

TEST_CASE("a free under a prohibiting capture leaves the memory") {
  const Simulated plain;
  const CUdeviceptr address = Simulated::allocate(4096);
  const CUstream captured = Simulated::stream();
  REQUIRE(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(address) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cusim_allocation_count(0) == 1);
}

TEST_CASE("a thread-local capture binds its own thread only") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUdeviceptr address = 0;
  CHECK(in_another_thread(sim.context, [&] { return cuMemAlloc_v2(&address, 1); }) == CUDA_SUCCESS);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(cuMemAlloc_v2(&address, 1) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

TEST_CASE("a relaxed capture forbids nothing that is only potentially unsafe") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc_v2(&address, 1) == CUDA_SUCCESS);
  CHECK(cuEventQuery(sim.idle_event) == CUDA_SUCCESS);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  // Synchronising the context would wait for the capturing stream: that conflicts in every mode.
  CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(sim.end() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a thread's exchanged mode decides what it may do") {
  Capturing sim;
  CUdeviceptr address = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
  CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  CHECK(cuMemAlloc_v2(&address, 4096) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(address) == CUDA_SUCCESS);
  REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
  CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  // THREAD_LOCAL ignores the captures of other threads, not one's own.
  CHECK(in_another_thread(sim.context, [&] {
          CUstreamCaptureMode local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
          cuThreadExchangeStreamCaptureMode(&local);
          return cuMemAlloc_v2(&address, 1);
        }) == CUDA_SUCCESS);
  CHECK(sim.end() == CUDA_SUCCESS);
  mode = static_cast<CUstreamCaptureMode>(3);  // the one value that the type holds and the driver does not know
  CHECK(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a context event during a capture in that context kills the capture") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
  SECTION("recorded") { CHECK(cuCtxRecordEvent(sim.context, sim.idle_event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
  SECTION("waited for") { CHECK(cuCtxWaitEvent(sim.context, sim.idle_event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK(sim.end() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a context event in another context leaves the capture alone") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  CHECK(cuCtxRecordEvent(other, Simulated::event()) == CUDA_SUCCESS);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

TEST_CASE("the legacy stream may not be used while a blocking stream captures") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_DEFAULT);
  SECTION("work") { CHECK(cusim_launch_spin(nullptr, 1) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); }
  SECTION("query") { CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); }
  SECTION("wait") { CHECK(cuStreamSynchronize(nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); }
  SECTION("free in its order") { CHECK(cuMemFreeAsync(Simulated::allocate(kMiB), nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); }
  SECTION("synchronous copy") {
    char byte = 0;
    CHECK(cuMemcpyHtoD_v2(4096, &byte, 1) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

TEST_CASE("asking about the legacy stream is refused but does not end the capture") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_DEFAULT);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CHECK(cuStreamIsCapturing(nullptr, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(sim.status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

TEST_CASE("a non-blocking capture does not concern the legacy stream") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_NON_BLOCKING);
  CHECK(cusim_launch_spin(nullptr, 1) == CUDA_SUCCESS);
  CHECK(sim.end() == CUDA_SUCCESS);
}

TEST_CASE("the legacy stream itself cannot capture, and a capturing stream cannot begin again") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuStreamBeginCapture_v2(sim.captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_ILLEGAL_STATE);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(Simulated::stream(), &graph) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("a capture ends in its own thread, unless it is relaxed") {
  SECTION("global") {
    Capturing sim;
    CHECK(in_another_thread(sim.context, [&] { return sim.end(); }) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    CHECK(sim.end() == CUDA_SUCCESS);
  }
  SECTION("relaxed") {
    Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
    CHECK(in_another_thread(sim.context, [&] { return sim.end(); }) == CUDA_SUCCESS);
  }
}

TEST_CASE("streams join a capture through events, and must come back") {
  Capturing sim;
  const CUstream side = Simulated::stream();
  const CUevent fork = Simulated::event();
  const CUevent join = Simulated::event();
  REQUIRE(cusim_launch_spin(sim.captured, 10) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(fork, sim.captured) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(side, fork, 0) == CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CHECK(cuStreamIsCapturing(side, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  REQUIRE(cusim_launch_spin(side, 10) == CUDA_SUCCESS);
  SECTION("joined") {
    REQUIRE(cuEventRecord(join, side) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(sim.captured, join, 0) == CUDA_SUCCESS);
    CHECK(sim.end() == CUDA_SUCCESS);
    CHECK(cuStreamIsCapturing(side, &status) == CUDA_SUCCESS);
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  }
  SECTION("not joined") { CHECK(sim.end() == CUDA_ERROR_STREAM_CAPTURE_UNJOINED); }
  SECTION("ended on the wrong stream") {
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(side, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK(sim.end() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
}

TEST_CASE("an event of a capture cannot be asked from outside") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE(cuEventRecord(sim.idle_event, sim.captured) == CUDA_SUCCESS);
  SECTION("by a query") { CHECK(cuEventQuery(sim.idle_event) == CUDA_ERROR_CAPTURED_EVENT); }
  SECTION("by a wait") { CHECK(cuEventSynchronize(sim.idle_event) == CUDA_ERROR_CAPTURED_EVENT); }
  SECTION("nor its stream be given a callback") {
    const CUstreamCallback callback = [](CUstream, CUresult, void*) {};
    CHECK(cuStreamAddCallback(sim.captured, callback, nullptr, 0) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  CHECK(sim.end() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("an event of a capture that is recorded outside of it is the capture's no more") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE(cuEventRecord(sim.idle_event, sim.captured) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(sim.idle_event, Simulated::stream()) == CUDA_SUCCESS);
  CHECK(cuEventQuery(sim.idle_event) == CUDA_SUCCESS);
  CHECK(sim.end() == CUDA_SUCCESS);
}

TEST_CASE("nothing joins a capture that has become invalid") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE(cuEventRecord(sim.idle_event, sim.captured) == CUDA_SUCCESS);
  REQUIRE(cuEventQuery(sim.idle_event) == CUDA_ERROR_CAPTURED_EVENT);
  CHECK(cuEventRecord(Simulated::event(), sim.captured) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuStreamWaitEvent(Simulated::stream(), sim.idle_event, 0) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(sim.end() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a capture cannot depend on work outside of it, nor on another capture") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
  const CUevent outside = Simulated::event();
  SECTION("uncaptured work") {
    REQUIRE(cuEventRecord(outside, nullptr) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(sim.captured, outside, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  }
  SECTION("another capture") {
    const CUstream second = Simulated::stream();
    REQUIRE(cuStreamBeginCapture_v2(second, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(outside, second) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(sim.captured, outside, 0) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
  }
  CHECK(sim.end() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("synchronising the capturing stream kills its capture in any mode") {
  Capturing sim(CU_STREAM_CAPTURE_MODE_RELAXED);
  SECTION("synchronise") { CHECK(cuStreamSynchronize(sim.captured) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
  SECTION("query") { CHECK(cuStreamQuery(sim.captured) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
  CHECK(sim.end() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a destroyed stream takes its capture along") {
  Capturing sim;
  REQUIRE(cuStreamDestroy_v2(sim.captured) == CUDA_SUCCESS);
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc_v2(&address, 1) == CUDA_SUCCESS);
}

TEST_CASE("capture information names the capture and its graph, and work can go to a given graph") {
  Capturing sim;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph early = nullptr;
  CHECK(cuStreamGetCaptureInfo_v2(sim.captured, &status, &id, &early, nullptr, nullptr) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(id != 0);
  REQUIRE(sim.end() == CUDA_SUCCESS);
  CHECK(sim.graph == early);
  CUgraph made = nullptr;
  REQUIRE(cuGraphCreate(&made, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCaptureToGraph(sim.captured, made, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(sim.captured, 10) == CUDA_SUCCESS);
  REQUIRE(sim.end() == CUDA_SUCCESS);
  CHECK(sim.graph == made);
  std::size_t count = 0;
  CHECK(cuGraphGetNodes(made, nullptr, &count) == CUDA_SUCCESS);
  CHECK(count == 1);
}
