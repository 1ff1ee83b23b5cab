// Every allocating call of the runtime once, each marked for the tracer, with the driver call that cupool expects behind
// it. Knows nothing of cupool. Built with the shared runtime and, where the toolkit has it, with the static one.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "tests/gpu/programs/trace_mark.h"

extern "C" cudaError_t cudaMallocAsync_ptsz(void** out, size_t bytes, cudaStream_t stream);
extern "C" cudaError_t cudaFreeAsync_ptsz(void* address, cudaStream_t stream);

namespace {

constexpr size_t kBytes = 1 << 20;

void mark(const char* label, const char* assumed) {
  if (gpu_trace_mark != nullptr) gpu_trace_mark(label, assumed);
}

/// Tells what the call answered, and forgets what it called where that failed.
bool ask(const char* name, cudaError_t code, const char* assumed) {
  if (code == cudaSuccess) mark(name, assumed);
  else mark(nullptr, nullptr);
  if (code != cudaSuccess) {
    std::printf("{\"question\": \"%s\", \"left_out\": \"%s\"}\n", name, cudaGetErrorName(code));
    std::fflush(stdout);
    static_cast<void>(cudaGetLastError());
  }
  return code == cudaSuccess;
}

void plain_calls() {
  void* address = nullptr;
  if (ask("cudaMalloc", cudaMalloc(&address, kBytes), "cuMemAlloc_v2")) ask("cudaFree", cudaFree(address), "cuMemFree_v2");
  size_t pitch = 0;
  if (ask("cudaMallocPitch", cudaMallocPitch(&address, &pitch, 1000, 64), "cuMemAllocPitch_v2"))
    ask("cudaFree of a pitched block", cudaFree(address), "cuMemFree_v2");
  cudaPitchedPtr volume{};
  if (ask("cudaMalloc3D", cudaMalloc3D(&volume, cudaExtent{1000, 16, 4}), "cuMemAllocPitch_v2"))
    ask("cudaFree of a volume", cudaFree(volume.ptr), "cuMemFree_v2");
  ask("cudaFree of NULL", cudaFree(nullptr), nullptr);
  size_t free_bytes = 0, total_bytes = 0;
  ask("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes), nullptr);
}

void stream_ordered_calls() {
  void* address = nullptr;
  cudaStream_t stream = nullptr;
  if (cudaStreamCreate(&stream) != cudaSuccess) return;
  mark(nullptr, nullptr);
  if (ask("cudaMallocAsync", cudaMallocAsync(&address, kBytes, stream), "cuMemAllocAsync"))
    ask("cudaFreeAsync", cudaFreeAsync(address, stream), "cuMemFreeAsync");
  if (ask("cudaMallocAsync, per-thread stream", cudaMallocAsync_ptsz(&address, kBytes, stream), "cuMemAllocAsync_ptsz")) {
    ask("cudaFreeAsync, per-thread stream", cudaFreeAsync_ptsz(address, stream), "cuMemFreeAsync_ptsz");
  }
  if (ask("cudaMallocAsync, again", cudaMallocAsync(&address, kBytes, stream), "cuMemAllocAsync")) {
    static_cast<void>(cudaStreamSynchronize(stream));
    mark(nullptr, nullptr);
    ask("cudaFree of a stream-ordered block", cudaFree(address), "cuMemFree_v2");
  }
  static_cast<void>(cudaStreamDestroy(stream));
  mark(nullptr, nullptr);
}

void other_memory() {
  void* address = nullptr;
  if (ask("cudaMallocManaged", cudaMallocManaged(&address, kBytes, cudaMemAttachGlobal), "cuMemAllocManaged"))
    ask("cudaFree of managed memory", cudaFree(address), "cuMemFree_v2");
  if (ask("cudaMallocHost", cudaMallocHost(&address, kBytes), "cuMemHostAlloc")) ask("cudaFreeHost", cudaFreeHost(address), "cuMemFreeHost");
  cudaArray_t array = nullptr;
  const cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindFloat};
  if (ask("cudaMallocArray", cudaMallocArray(&array, &format, 256, 256, 0), nullptr)) ask("cudaFreeArray", cudaFreeArray(array), nullptr);
}

void* g_at_exit = nullptr;

void free_at_exit() {
  const cudaError_t code = cudaFree(g_at_exit);
  std::printf("{\"question\": \"cudaFree in an exit handler registered after the first call\", \"answer\": \"%s\"}\n", cudaGetErrorName(code));
  std::fflush(stdout);
}

}  // namespace

int main() {
  const cudaError_t code = cudaFree(nullptr);
  if (code != cudaSuccess) {
    std::fprintf(stderr, "runtime_calls: the first call answered %s\n", cudaGetErrorName(code));
    return 1;
  }
  mark("the first runtime call (context creation)", nullptr);
  plain_calls();
  stream_ordered_calls();
  other_memory();
  if (cudaMalloc(&g_at_exit, kBytes) == cudaSuccess) std::atexit(free_at_exit);
  return 0;
}
