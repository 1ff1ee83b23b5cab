// Memory nodes of graphs: fixed addresses, the two lives of an allocation, who may free it, what the device keeps.
// More than 400 lines: all rules of one kind of memory, and one helper that captures the graphs.
#include <catch2/catch.hpp>

#include "sim_fixture.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

namespace {

struct Graphs : Simulated {
  explicit Graphs(std::initializer_list<std::pair<const char*, const char*>> values = {}) : Simulated(values), line(stream()) {}

  void begin() const { REQUIRE(cuStreamBeginCapture_v2(line, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS); }
  CUgraph end() const {
    CUgraph graph = nullptr;
    REQUIRE(cuStreamEndCapture(line, &graph) == CUDA_SUCCESS);
    return graph;
  }
  CUdeviceptr allocate_captured(std::size_t bytes) const {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocAsync(&address, bytes, line) == CUDA_SUCCESS);
    return address;
  }
  /// A graph that allocates, fills with 7, and (perhaps) checks and frees.
  CUgraph filling(std::size_t bytes, bool frees, CUdeviceptr* out) const {
    begin();
    *out = allocate_captured(bytes);
    REQUIRE(cuMemsetD8Async(*out, 7, bytes, line) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_check(line, *out, bytes, 7, 100) == CUDA_SUCCESS);
    if (frees) {
      REQUIRE(cuMemFreeAsync(*out, line) == CUDA_SUCCESS);
    }
    return end();
  }
  static CUgraphExec instantiate(CUgraph graph, unsigned long long flags = 0) {
    CUgraphExec exec = nullptr;
    REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, flags) == CUDA_SUCCESS);
    return exec;
  }
  static std::uint64_t attribute(CUgraphMem_attribute which) {
    std::uint64_t value = 1;
    REQUIRE(cuDeviceGetGraphMemAttribute(0, which, &value) == CUDA_SUCCESS);
    return value;
  }

  CUstream line;
};

CUDA_MEM_ALLOC_NODE_PARAMS on_device(int device, std::size_t bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
  wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  wanted.bytesize = bytes;
  return wanted;
}

}  // namespace

TEST_CASE("a captured allocation and free become nodes; the bytes come with the launch and stay until a trim") {
  const Graphs sim;
  CUdeviceptr address = 0;
  const CUgraph graph = sim.filling(3 * kMiB, true, &address);
  CHECK(cusim_used_bytes(0) == 0);
  std::size_t count = 4;
  CUgraphNode nodes[4] = {};
  REQUIRE(cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS);
  REQUIRE(count == 4);
  CUgraphNodeType type{};
  CHECK(cuGraphNodeGetType(nodes[0], &type) == CUDA_SUCCESS);
  CHECK(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  CUDA_MEM_ALLOC_NODE_PARAMS told{};
  CHECK(cuGraphMemAllocNodeGetParams(nodes[0], &told) == CUDA_SUCCESS);
  CHECK(told.dptr == address);
  CHECK(told.bytesize == 3 * kMiB);
  CHECK(cuGraphMemAllocNodeGetParams(nodes[1], &told) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr freed = 0;
  CHECK(cuGraphMemFreeNodeGetParams(nodes[3], &freed) == CUDA_SUCCESS);
  CHECK(freed == address);
  const CUgraphExec exec = Graphs::instantiate(graph);
  CHECK(cusim_used_bytes(0) == 0);
  for (int i = 0; i < 3; ++i) REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 4 * kMiB);
  REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);  // in use: nothing to give
  CHECK(cusim_used_bytes(0) == 4 * kMiB);
  REQUIRE(cuStreamSynchronize(sim.line) == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(Graphs::attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 4 * kMiB);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(Graphs::attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(Graphs::attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 4 * kMiB);
  CHECK(cusim_used_bytes(0) == 4 * kMiB);
  REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(Graphs::attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
  CHECK(Graphs::attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 4 * kMiB);
  std::uint64_t value = 1;
  CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &value) == CUDA_ERROR_INVALID_VALUE);
  value = 0;
  CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &value) == CUDA_SUCCESS);
  CHECK(Graphs::attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 0);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("graph memory shares no bytes with what lives beside it, and the marks of its pool are reset one by one") {
  const Graphs sim;
  const CUdeviceptr plain = Simulated::allocate(3 * kMiB);
  REQUIRE(cuMemsetD8_v2(plain, 0x55, 3 * kMiB) == CUDA_SUCCESS);
  CUdeviceptr address = 0;
  const CUgraphExec exec = Graphs::instantiate(sim.filling(3 * kMiB, true, &address));
  REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(sim.line) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(nullptr, plain, 3 * kMiB, 0x55, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  std::uint64_t value = 0;
  REQUIRE(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value) == CUDA_SUCCESS);
  CHECK(Graphs::attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 4 * kMiB);
}

TEST_CASE("graph memory that outlives its graph is freed outside, once, and only after a launch") {
  const Graphs sim;
  CUdeviceptr address = 0;
  const CUgraph graph = sim.filling(kMiB, false, &address);
  const CUgraphExec exec = Graphs::instantiate(graph);
  CHECK(cuMemFreeAsync(address, sim.line) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, sim.line) == CUDA_ERROR_INVALID_VALUE);  // still live
  // Work in order after the launch may touch it.
  REQUIRE(cusim_launch_check(sim.line, address, kMiB, 7, 10) == CUDA_SUCCESS);
  SECTION("in stream order") { CHECK(cuMemFreeAsync(address, sim.line) == CUDA_SUCCESS); }
  SECTION("at once") { CHECK(cuMemFree_v2(address) == CUDA_SUCCESS); }
  CHECK(cuMemFreeAsync(address, sim.line) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 3);
  REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);  // the same address again
  REQUIRE(cusim_launch_check(sim.line, address, kMiB, 7, 10) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  // The end of the graph does not free it.
  REQUIRE(cusim_launch_check(sim.line, address, kMiB, 7, 10) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(cusim_mismatched_bytes() == 0);
}

TEST_CASE("graph memory is there from its allocation to its free, and at no other time") {
  const Graphs sim;
  CUdeviceptr address = 0;
  const bool frees = GENERATE(false, true);
  const CUgraph graph = sim.filling(kMiB, frees, &address);
  const CUgraphExec exec = Graphs::instantiate(graph);
  if (frees) {
    REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  }
  REQUIRE(cusim_launch_fill(sim.line, address, 1, 1, 10) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(sim.line) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(Graphs::last_violation().find("outside the life of its graph allocation") != std::string::npos);
}

TEST_CASE("the host knows graph memory from a launch to its free, and as nobody's") {
  const Graphs sim;
  CUdeviceptr address = 0;
  const CUgraph graph = sim.filling(kMiB, false, &address);
  const CUgraphExec exec = Graphs::instantiate(graph);
  CUcontext owner = sim.context;
  const auto is_known = [&] {
    const CUresult range = cuMemGetAddressRange_v2(nullptr, nullptr, address + 100);
    const CUresult attribute = cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address);
    CHECK(range == (attribute == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND));
    return attribute;
  };
  CHECK(is_known() == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  CHECK(is_known() == CUDA_SUCCESS);
  CHECK(owner == nullptr);
  REQUIRE(cuMemFreeAsync(address, sim.line) == CUDA_SUCCESS);
  CHECK(is_known() == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("auto-free on launch frees what the last launch left, in the order of the stream") {
  const Graphs sim;
  CUdeviceptr address = 0;
  const CUgraph graph = sim.filling(kMiB, false, &address);
  const CUgraphExec exec = Graphs::instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  for (int i = 0; i < 3; ++i) REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(address, sim.line) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(sim.line) == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("a graph with memory nodes has one executable graph at a time and no clone") {
  const Graphs sim;
  CUdeviceptr address = 0;
  const CUgraph graph = sim.filling(kMiB, true, &address);
  const CUgraphExec exec = Graphs::instantiate(graph);
  CUgraphExec second = nullptr;
  CUgraph clone = nullptr;
  CHECK(cuGraphInstantiateWithFlags(&second, graph, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuGraphClone(&clone, graph) == CUDA_ERROR_NOT_SUPPORTED);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(cuGraphInstantiateWithFlags(&second, graph, 0) == CUDA_SUCCESS);
  CHECK(cuGraphInstantiateWithFlags(&second, graph, 64) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a captured free must name memory of a graph, once; else it is refused, and the capture lives") {
  const Graphs sim;
  const CUdeviceptr plain = Simulated::allocate(kMiB);
  CUdeviceptr ordered = 0;
  REQUIRE(cuMemAllocAsync(&ordered, kMiB, sim.line) == CUDA_SUCCESS);
  sim.begin();
  const CUdeviceptr captured = sim.allocate_captured(kMiB);
  SECTION("plain memory") { CHECK(cuMemFreeAsync(plain, sim.line) == CUDA_ERROR_INVALID_VALUE); }
  SECTION("stream-ordered memory") { CHECK(cuMemFreeAsync(ordered, sim.line) == CUDA_ERROR_INVALID_VALUE); }
  SECTION("an address of nobody") { CHECK(cuMemFreeAsync(0x1234, sim.line) == CUDA_ERROR_INVALID_VALUE); }
  SECTION("inside an allocation") { CHECK(cuMemFreeAsync(captured + 512, sim.line) == CUDA_ERROR_INVALID_VALUE); }
  SECTION("twice") {
    REQUIRE(cuMemFreeAsync(captured, sim.line) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(captured, sim.line) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(cusim_violation_count() == 1);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(sim.line, &graph) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(plain) == CUDA_SUCCESS);  // the memory itself is as it was
  CHECK(cuMemFree_v2(ordered) == CUDA_SUCCESS);
}

TEST_CASE("another graph may free it, and then its own may not") {
  const Graphs sim;
  CUdeviceptr address = 0;
  const CUgraph graph = sim.filling(kMiB, false, &address);
  sim.begin();
  REQUIRE(cuMemFreeAsync(address, sim.line) == CUDA_SUCCESS);
  const CUgraph freeing = sim.end();
  CUgraphNode node = nullptr;
  CHECK(cuGraphAddMemFreeNode(&node, graph, nullptr, 0, address) == CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec exec = Graphs::instantiate(graph);
  const CUgraphExec free_exec = Graphs::instantiate(freeing);
  CHECK(cuGraphLaunch(free_exec, sim.line) == CUDA_ERROR_INVALID_VALUE);  // not live yet
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(free_exec, sim.line) == CUDA_SUCCESS);
  }
  CHECK(cuMemFreeAsync(address, sim.line) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuStreamSynchronize(sim.line) == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
}

TEST_CASE("memory that its own graph frees cannot be freed elsewhere") {
  const Graphs sim;
  CUdeviceptr address = 0;
  const CUgraph graph = sim.filling(kMiB, true, &address);
  const CUgraphExec exec = Graphs::instantiate(graph);
  REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(address, sim.line) == CUDA_ERROR_INVALID_VALUE);
  CHECK(Graphs::last_violation().find("its own graph frees") != std::string::npos);
  CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
  CUgraph other = nullptr;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphCreate(&other, 0) == CUDA_SUCCESS);
  CHECK(cuGraphAddMemFreeNode(&node, other, nullptr, 0, address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 3);
}

TEST_CASE("memory nodes by hand take the same rules") {
  const Graphs sim{{"DEVICES", "2"}};
  CUgraph graph = nullptr;
  CUgraphNode made = nullptr;
  CUgraphNode freed = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS wanted = on_device(0, kMiB);
  wanted.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CHECK(cuGraphAddMemAllocNode(&made, graph, nullptr, 0, &wanted) == CUDA_ERROR_INVALID_VALUE);
  wanted = on_device(0, 0);
  CHECK(cuGraphAddMemAllocNode(&made, graph, nullptr, 0, &wanted) == CUDA_ERROR_INVALID_VALUE);
  wanted = on_device(0, kMiB);
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  wanted.accessDescs = &access;
  wanted.accessDescCount = 1;
  REQUIRE(cuGraphAddMemAllocNode(&made, graph, nullptr, 0, &wanted) == CUDA_SUCCESS);
  REQUIRE(wanted.dptr != 0);
  const CUgraphNode twice[] = {made, made};
  CHECK(cuGraphAddMemFreeNode(&freed, graph, twice, 2, wanted.dptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphAddMemFreeNode(&freed, graph, &made, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 1);
  const CUgraphExec before = Graphs::instantiate(graph);
  REQUIRE(cuGraphUpload(before, sim.line) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 2 * kMiB);
  REQUIRE(cuGraphLaunch(before, sim.line) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(sim.line) == CUDA_SUCCESS);
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  CHECK(cusim_launch_fill(nullptr, wanted.dptr, 1, 1, 1) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(sim.context) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(wanted.dptr) == CUDA_SUCCESS);
  REQUIRE(cuGraphExecDestroy(before) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddMemFreeNode(&freed, graph, &made, 1, wanted.dptr) == CUDA_SUCCESS);
  const CUgraphExec exec = Graphs::instantiate(graph);
  REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
}

TEST_CASE("a free node that is not ordered after its allocation node is a violation") {
  const Graphs sim;
  CUgraph graph = nullptr;
  CUgraphNode made = nullptr;
  CUgraphNode freed = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS wanted = on_device(0, kMiB);
  REQUIRE(cuGraphAddMemAllocNode(&made, graph, nullptr, 0, &wanted) == CUDA_SUCCESS);
  CHECK(cuGraphAddMemFreeNode(&freed, graph, nullptr, 0, wanted.dptr) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 1);
}

TEST_CASE("a launch without room for its memory fails, and nothing runs") {
  const Graphs sim{{"MEMORY", "4MiB"}};
  CUdeviceptr address = 0;
  const CUgraph graph = sim.filling(3 * kMiB, true, &address);
  const CUgraphExec exec = Graphs::instantiate(graph);
  const CUdeviceptr hog = Simulated::allocate(3 * kMiB);
  REQUIRE(hog != 0);
  CHECK(cuGraphLaunch(exec, sim.line) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemFree_v2(hog) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(sim.line) == CUDA_SUCCESS);
  CHECK(Simulated::allocate(kMiB) == 0);  // kept for graphs until the trim
  REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  CHECK(Simulated::allocate(kMiB) != 0);
}

TEST_CASE("what is kept for graphs that are gone gives way to an allocation, what a graph still holds does not") {
  const Graphs sim{{"MEMORY", "8MiB"}};
  CUdeviceptr address = 0;
  const CUgraph graph = sim.filling(4 * kMiB, true, &address);
  const CUgraphExec exec = Graphs::instantiate(graph);
  REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(sim.line) == CUDA_SUCCESS);
  CHECK(Simulated::allocate(6 * kMiB) == 0);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(Graphs::attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 4 * kMiB);
  CHECK(Simulated::allocate(6 * kMiB) != 0);
  CHECK(Graphs::attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
}

TEST_CASE("launches of one executable graph run one after the other, whatever their streams") {
  const Graphs sim;
  CUdeviceptr address = 0;
  const bool with_memory = GENERATE(false, true);
  sim.begin();
  REQUIRE(cusim_launch_spin(sim.line, 1100) == CUDA_SUCCESS);
  const CUgraph plain = sim.end();
  const CUgraphExec exec = Graphs::instantiate(with_memory ? sim.filling(kMiB, true, &address) : plain);
  const CUstream other = Simulated::stream();
  REQUIRE(cusim_launch_spin(sim.line, 5000) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, sim.line) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, other) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 5000 + 2 * (1000 + 100));
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("graph memory dies with its context, and its graph cannot be launched") {
  const Graphs sim;
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
  const CUstream inner = Simulated::stream();
  CUdeviceptr address = 0;
  CUgraph graph = nullptr;
  REQUIRE(cuStreamBeginCapture_v2(inner, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&address, kMiB, inner) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(inner, &graph) == CUDA_SUCCESS);
  const CUgraphExec exec = Graphs::instantiate(graph);
  REQUIRE(cuGraphLaunch(exec, inner) == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(sim.context) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphLaunch(exec, sim.line) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
  REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("the capture says on which nodes the next one depends") {
  const Graphs sim;
  sim.begin();
  CUstreamCaptureStatus status{};
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  CUgraph graph = nullptr;
  std::size_t count = 9;
  REQUIRE(cuStreamGetCaptureInfo_v3(sim.line, &status, nullptr, &graph, &nodes, &edges, &count) == CUDA_SUCCESS);
  CHECK(count == 0);
  sim.allocate_captured(kMiB);
  REQUIRE(cuStreamGetCaptureInfo_v2(sim.line, &status, nullptr, &graph, &nodes, &count) == CUDA_SUCCESS);
  REQUIRE(count == 1);
  CUgraphNodeType type{};
  REQUIRE(cuGraphNodeGetType(nodes[0], &type) == CUDA_SUCCESS);
  CHECK(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  CHECK(cusim_violation_count() == 0);
}
