// Static objects and library destructors that free after exit has begun, and handlers registered before and after the first
// CUDA call: a free of pooled memory succeeds and does nothing, nothing crashes, the driver gets no call of ours.
//! check c["allocations"] >= 2
#include <cuda_runtime_api.h>

#include "victim.h"

struct Holder {
  void* memory = nullptr;
  ~Holder() {
    if (memory != nullptr) SAY(cudaFree(memory));
  }
};
static Holder holder;

static void* from_handler = nullptr;
static void registered_before() { SAY(cudaFree(from_handler)); }
static void registered_after() {
  SAY(cudaFree(from_handler));
  MUST(cudaMalloc(&from_handler, MIB));
}

int main() {
  atexit(registered_before);
  MUST(cudaMalloc(&holder.memory, MIB));
  MUST(cudaMalloc(&from_handler, MIB));
  atexit(registered_after);
  return 0;
}
