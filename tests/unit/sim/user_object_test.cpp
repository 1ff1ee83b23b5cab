// User objects: destroyed once, when nobody holds them any more.
#include <catch2/catch.hpp>

#include "sim_fixture.hpp"

using sim_test::Simulated;

namespace {

int g_destroyed = 0;

void CUDA_CB destroy(void* object) { g_destroyed += *static_cast<int*>(object); }

CUuserObject object_of(unsigned count) {
  static int one = 1;
  g_destroyed = 0;
  CUuserObject object = nullptr;
  REQUIRE(cuUserObjectCreate(&object, &one, &destroy, count, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS);
  return object;
}

/// With one node that does nothing.
CUgraph graph() {
  CUgraph made = nullptr;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphCreate(&made, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddEmptyNode(&node, made, nullptr, 0) == CUDA_SUCCESS);
  return made;
}

}  // namespace

TEST_CASE("a user object is destroyed with its last reference, and no reference is let go of that is not held") {
  const Simulated sim;
  const CUuserObject object = object_of(2);
  CHECK(cuUserObjectRelease(object, 1) == CUDA_SUCCESS);
  CHECK(cuUserObjectRetain(object, 2) == CUDA_SUCCESS);
  CHECK(cuUserObjectRetain(object, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 0);
  CHECK(cuUserObjectRelease(object, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 1);
  CHECK(g_destroyed == 0);
  CHECK(cuUserObjectRelease(object, 3) == CUDA_SUCCESS);
  CHECK(g_destroyed == 1);
  CHECK(cuUserObjectRetain(object, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 2);
  CUuserObject out = nullptr;
  CHECK(cuUserObjectCreate(&out, nullptr, &destroy, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuUserObjectCreate(&out, nullptr, nullptr, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a graph, its clones, what was instantiated from it and launches that are not over hold its objects") {
  const Simulated sim;
  const CUuserObject object = object_of(1);
  const CUgraph original = graph();
  CUgraph clone = nullptr;
  CUgraphExec exec = nullptr;
  const CUstream stream = Simulated::stream();
  REQUIRE(cuGraphRetainUserObject(original, object, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS);
  REQUIRE(cuGraphClone(&clone, original) == CUDA_SUCCESS);
  REQUIRE(cuGraphInstantiateWithFlags(&exec, original, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(original) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(clone) == CUDA_SUCCESS);
  CHECK(g_destroyed == 0);
  REQUIRE(cusim_launch_spin(stream, 1000) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(g_destroyed == 0);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(g_destroyed == 1);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("a clone holds the objects of its graph without it") {
  const Simulated sim;
  const CUuserObject object = object_of(1);
  const CUgraph original = graph();
  CUgraph clone = nullptr;
  REQUIRE(cuGraphRetainUserObject(original, object, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS);
  REQUIRE(cuGraphClone(&clone, original) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(original) == CUDA_SUCCESS);
  CHECK(g_destroyed == 0);
  REQUIRE(cuGraphDestroy(clone) == CUDA_SUCCESS);
  CHECK(g_destroyed == 1);
}

TEST_CASE("a graph lets go of an object when it is told to, and of no more than it holds") {
  const Simulated sim;
  const CUuserObject object = object_of(1);
  const CUgraph made = graph();
  CHECK(cuGraphRetainUserObject(made, object, 1, 2) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuGraphRetainUserObject(made, object, 2, 0) == CUDA_SUCCESS);
  REQUIRE(cuUserObjectRelease(object, 1) == CUDA_SUCCESS);
  REQUIRE(cuUserObjectRetain(object, 1) == CUDA_SUCCESS);  // the graph holds it
  REQUIRE(cuUserObjectRelease(object, 1) == CUDA_SUCCESS);
  REQUIRE(cuGraphReleaseUserObject(made, object, 1) == CUDA_SUCCESS);
  CHECK(g_destroyed == 0);
  CHECK(cuGraphReleaseUserObject(made, object, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 1);
  REQUIRE(cuGraphReleaseUserObject(made, object, 1) == CUDA_SUCCESS);
  CHECK(g_destroyed == 1);
}
