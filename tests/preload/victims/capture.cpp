// Allocations and frees while a stream captures, in each mode: the capture survives, the graph runs, no block that was freed
// meanwhile is reused before its end. (A pool hit succeeds during capture where the driver refuses: a stated difference.)
//! native skip
//! case global
//! args 0
//! case thread_local
//! args 1
//! case relaxed
//! args 2
//! case growing
//! args 0 grow
#include <cuda_runtime_api.h>

#include "victim.h"

int main(int argc, char** argv) {
  const bool grow = argc > 2;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  void* target = nullptr;
  void* before = nullptr;
  void* during = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaMalloc(&target, MIB));
  MUST(cudaMalloc(&before, MIB));
  MUST(cudaStreamBeginCapture(stream, static_cast<cudaStreamCaptureMode>(atoi(argv[1]))));
  MUST(cudaMemsetAsync(before, 1, MIB, stream));
  MUST(cudaFree(before));
  MUST(cudaMalloc(&during, grow ? 1 * GIB : MIB));
  printf("reused during capture: %d\n", during == before);
  MUST(cudaMemsetAsync(target, 2, MIB, stream));
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphInstantiate(&exec, graph, 0));
  MUST(cudaGraphLaunch(exec, stream));
  MUST(cudaStreamSynchronize(stream));
  unsigned char back = 0;
  MUST(cudaMemcpy(&back, target, 1, cudaMemcpyDeviceToHost));
  printf("graph wrote %d\n", back);
  return during == before || back != 2;
}
