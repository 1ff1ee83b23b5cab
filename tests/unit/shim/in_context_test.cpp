// A context that is current for a scope: what was current before is current again, whatever the driver answers.
#include "shim/in_context.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

using cupool::DriverApi;
using cupool::shim::InContext;

namespace {

std::vector<CUcontext> g_stack;
int g_refused_pushes = 0;
int g_refused_pops = 0;

CUresult push(CUcontext context) {
  if (g_refused_pushes-- > 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  g_stack.push_back(context);
  return CUDA_SUCCESS;
}
CUresult pop(CUcontext* context) {
  if (g_refused_pops-- > 0) return CUDA_ERROR_LAUNCH_FAILED;
  *context = g_stack.back();
  g_stack.pop_back();
  return CUDA_SUCCESS;
}

CUcontext context(std::uintptr_t number) { return reinterpret_cast<CUcontext>(number * 0x10); }

DriverApi driver() {
  g_stack = {context(1)};
  g_refused_pushes = g_refused_pops = 0;
  DriverApi api;
  api.cuCtxPushCurrent_v2 = &push;
  api.cuCtxPopCurrent_v2 = &pop;
  return api;
}

}  // namespace

TEST_CASE("a context is current for a scope, and the one before after it, also where the driver tells of earlier work's error") {
  const DriverApi api = driver();
  for (const int refused : {0, 1}) {
    g_refused_pops = refused;
    {
      const InContext inside(api, context(2));
      CHECK(inside.ok());
      CHECK(g_stack == std::vector<CUcontext>{context(1), context(2)});
    }
    CHECK(g_stack == std::vector<CUcontext>{context(1)});
  }
}

TEST_CASE("where the driver refuses the context nothing is taken from the stack that nobody put there") {
  const DriverApi api = driver();
  g_refused_pushes = 1;
  {
    const InContext inside(api, context(2));
    CHECK_FALSE(inside.ok());
  }
  CHECK(g_stack == std::vector<CUcontext>{context(1)});
}
