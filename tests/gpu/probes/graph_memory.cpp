// Memory that belongs to graphs: when it takes bytes of the device, what its address answers before a launch and after a
// free, what a refused captured free does to the capture, and the codes for graphs that can be neither copied nor doubled.
#include <functional>

#include "tests/gpu/probes/streams.hpp"

namespace probe {
namespace {

constexpr std::size_t kGraphBytes = 64 << 20;

std::uint64_t graph_figure(CUdevice device, CUgraphMem_attribute attribute) {
  cuuint64_t value = 0;
  prepare(CU(cuDeviceGetGraphMemAttribute)(device, attribute, &value), "cuDeviceGetGraphMemAttribute");
  return value;
}

/// A captured graph, and the address that an allocation in it got.
struct Captured {
  CUgraph graph = nullptr;
  CUdeviceptr address = 0;
  Captured() = default;
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    if (graph != nullptr) static_cast<void>(CU(cuGraphDestroy)(graph));
  }
};

void capture(CUstream stream, Captured& out, const std::function<void()>& calls) {
  prepare(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  calls();
  prepare(CU(cuStreamEndCapture)(stream, &out.graph), "cuStreamEndCapture");
}

CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec exec = nullptr;
  prepare(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  return exec;
}

void ask_address(const char* when, CUdeviceptr address) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUcontext owner = nullptr;
  CUmemoryPool pool = nullptr;
  const std::string words = std::string("graph memory ") + when + ": ";
  answer(words + "cuMemGetAddressRange", CU(cuMemGetAddressRange_v2)(&base, &bytes, address));
  answer(words + "cuPointerGetAttribute(CONTEXT)", CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address));
  answer(words + "cuPointerGetAttribute(MEMPOOL_HANDLE)", CU(cuPointerGetAttribute)(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address));
}

/// Bytes and answers along the life of one allocation that the graph does not free itself.
void ask_life(CUdevice device) {
  const Stream stream;
  Captured captured;
  const std::size_t start = free_bytes();
  const auto taken = [&] { return start - std::min(start, free_bytes()) >= kGraphBytes; };
  capture(stream, captured, [&] { captured.address = take_async(kGraphBytes, stream); });
  ask_address("before its graph exists", captured.address);
  CUgraphExec exec = instantiate(captured.graph);
  answer("graph memory: instantiating takes its bytes from the device", taken());
  prepare(CU(cuGraphUpload)(exec, stream), "cuGraphUpload");
  stream.synchronize();
  answer("graph memory: uploading takes its bytes from the device", taken());
  prepare(CU(cuGraphLaunch)(exec, stream), "cuGraphLaunch");
  stream.synchronize();
  answer("graph memory: after a launch its bytes are taken", taken(), true);
  ask_address("after a launch", captured.address);
  answer("a launch while its memory is live", CU(cuGraphLaunch)(exec, stream));
  CUgraphExec second = nullptr;
  CUgraph clone = nullptr;
  answer("a second executable graph of a graph with memory", CU(cuGraphInstantiateWithFlags)(&second, captured.graph, 0));
  answer("a clone of a graph with memory", CU(cuGraphClone)(&clone, captured.graph));
  answer("graph memory after a launch: cuMemFreeAsync", CU(cuMemFreeAsync)(captured.address, stream), CUDA_SUCCESS);
  stream.synchronize();
  ask_address("after its free", captured.address);
  answer("graph memory after its free: cuMemFree", CU(cuMemFree_v2)(captured.address));
  prepare(CU(cuGraphExecDestroy)(exec), "cuGraphExecDestroy");
  answer("graph memory: freed and its graph ended, its bytes are still taken", taken());
  answer("graph memory: RESERVED_MEM_CURRENT holds them", graph_figure(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= kGraphBytes);
  prepare(CU(cuDeviceGraphMemTrim)(device), "cuDeviceGraphMemTrim");
  answer("graph memory: after cuDeviceGraphMemTrim its bytes are taken", taken(), false);
}

void ask_graph_marks(CUdevice device) {
  cuuint64_t zero = 0;
  answer("graph memory: USED_MEM_HIGH set to 0", CU(cuDeviceSetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
  answer("graph memory: USED_MEM_HIGH after it was set to 0 is what is used",
         graph_figure(device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == graph_figure(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
}

void ask_refused_free(const char* what, CUdeviceptr address, const Stream& stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  const std::string words = std::string("captured cuMemFreeAsync of ") + what;
  prepare(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  answer(words, CU(cuMemFreeAsync)(address, stream));
  static_cast<void>(CU(cuStreamIsCapturing)(stream, &status));
  answer(words + ": the capture lives", status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  answer(words + ": cuStreamEndCapture", CU(cuStreamEndCapture)(stream, &graph));
  if (graph != nullptr) static_cast<void>(CU(cuGraphDestroy)(graph));
}

void ask_refused_frees() {
  const Stream stream;
  const Memory plain(1 << 20);
  ask_refused_free("cuMemAlloc memory", plain.address(), stream);
  const CUdeviceptr ordered = take_async(1 << 20, stream);
  stream.synchronize();
  ask_refused_free("stream-ordered memory", ordered, stream);
  // A capture that took the free as a node never ran it: the block is live, and freed here at the latest.
  answer("stream-ordered memory after its captured free: cuMemFreeAsync", CU(cuMemFreeAsync)(ordered, stream), CUDA_SUCCESS);
  stream.synchronize();
}

/// Whether the driver takes back for cuMemAlloc what it keeps for graphs: half of the device kept, three quarters wanted.
void ask_graph_pressure(CUdevice device) {
  const Stream stream;
  const std::size_t all = free_bytes();
  {
    Captured captured;
    capture(stream, captured, [&] {
      captured.address = take_async(all / 2, stream);
      prepare(CU(cuMemFreeAsync)(captured.address, stream), "cuMemFreeAsync");
    });
    CUgraphExec exec = instantiate(captured.graph);
    prepare(CU(cuGraphLaunch)(exec, stream), "cuGraphLaunch");
    stream.synchronize();
    prepare(CU(cuGraphExecDestroy)(exec), "cuGraphExecDestroy");
  }
  CUdeviceptr address = 0;
  const CUresult code = CU(cuMemAlloc_v2)(&address, all / 4 * 3);
  answer("half of the device is kept for graphs: cuMemAlloc of three quarters", code);
  if (code == CUDA_SUCCESS) prepare(CU(cuMemFree_v2)(address), "cuMemFree");
  prepare(CU(cuDeviceGraphMemTrim)(device), "cuDeviceGraphMemTrim");
}

/// A node made by hand, not captured: to which context its memory belongs while another one is current at the launch.
void ask_node_by_hand(const Session& session) {
  const Stream stream;
  Captured captured;
  prepare(CU(cuGraphCreate)(&captured.graph, 0), "cuGraphCreate");
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, session.device};
  parameters.bytesize = 1 << 20;
  CUgraphNode node = nullptr;
  prepare(CU(cuGraphAddMemAllocNode)(&node, captured.graph, nullptr, 0, &parameters), "cuGraphAddMemAllocNode");
  CUgraphExec exec = instantiate(captured.graph);
  prepare(CU(cuGraphLaunch)(exec, stream), "cuGraphLaunch");
  stream.synchronize();
  CUcontext owner = nullptr;
  const CUresult code = CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, parameters.dptr);
  const char* const question = "memory of an allocation node made by hand: CONTEXT says";
  if (code == CUDA_SUCCESS) answer(question, owner == session.context ? "the primary" : owner == nullptr ? "none" : "another context");
  else answer(question, code);
  prepare(CU(cuMemFreeAsync)(parameters.dptr, stream), "cuMemFreeAsync");
  stream.synchronize();
  prepare(CU(cuGraphExecDestroy)(exec), "cuGraphExecDestroy");
  prepare(CU(cuDeviceGraphMemTrim)(session.device), "cuDeviceGraphMemTrim");
}

}  // namespace

void ask_graph_memory(Session& session) {
  group("one allocation", [&] { ask_life(session.device); });
  group("high-water marks", [&] { ask_graph_marks(session.device); });
  group("captured frees", ask_refused_frees);
  group("a node made by hand", [&] { ask_node_by_hand(session); });
  group("under pressure", [&] { ask_graph_pressure(session.device); });
}

}  // namespace probe
