// The runtime API as an ordinary program uses it: zero bytes, null, pitch, managed, host, arrays, streams, events, graphs.
//! misuse
//! check c["allocations"] == 3 and c["frees"] == 3 and report["data_quality"]["unpooled_apis_seen"] == ["cuMemAllocManaged"]
#include <cuda_runtime_api.h>

#include "victim.h"

static void streams_and_events() {
  cudaStream_t stream;
  cudaEvent_t event;
  float milliseconds = 0;
  void* block = nullptr;
  SAY(cudaStreamCreate(&stream));
  SAY(cudaEventCreate(&event));
  SAY(cudaMallocAsync(&block, MIB, stream));
  SAY(cudaMemsetAsync(block, 5, MIB, stream));
  SAY(cudaFreeAsync(block, stream));
  SAY(cudaEventRecord(event, stream));
  SAY(cudaStreamSynchronize(stream));
  SAY(cudaEventQuery(event));
  SAY(cudaEventElapsedTime(&milliseconds, event, event));
  SAY(cudaEventDestroy(event));
  SAY(cudaStreamDestroy(stream));
}

int main() {
  void* block = reinterpret_cast<void*>(0x77);
  SAY(cudaMalloc(&block, 0));
  printf("null %d\n", block == nullptr);
  SAY(cudaFree(nullptr));
  SAY(cudaMalloc(nullptr, 10));
  SAY(cudaFree(reinterpret_cast<void*>(0x1234)));
  SAY(cudaGetLastError());
  size_t pitch = 0;
  SAY(cudaMallocPitch(&block, &pitch, 1000, 100));
  printf("pitch %zu\n", pitch);
  SAY(cudaMemset2D(block, pitch, 1, 1000, 100));
  SAY(cudaFree(block));
  SAY(cudaMallocManaged(&block, MIB, cudaMemAttachGlobal));
  SAY(cudaFree(block));
  SAY(cudaMallocHost(&block, MIB));
  SAY(cudaFreeHost(block));
  char text[16] = "pooled";
  char back[16] = "";
  SAY(cudaMalloc(&block, sizeof text));
  SAY(cudaMemcpy(block, text, sizeof text, cudaMemcpyHostToDevice));
  SAY(cudaMemcpy(back, block, sizeof back, cudaMemcpyDefault));
  printf("%s\n", back);
  SAY(cudaFree(block));
  streams_and_events();
  int device = -1;
  SAY(cudaGetDevice(&device));
  SAY(cudaSetDevice(99));
  SAY(cudaDeviceSynchronize());
  return 0;
}
