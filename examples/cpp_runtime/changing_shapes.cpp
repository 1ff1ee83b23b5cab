// Allocates as training steps with changing shapes do, through the runtime API: plain cudaMalloc and stream-ordered. Knows
// nothing of cupool. Says what one cudaMalloc + cudaFree costs, so that a run with and one without cupool can be compared.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kSkipped = 77;
constexpr int kSteps = 60;
constexpr int kTensors = 48;
constexpr std::size_t kWidth = 4096;

using Clock = std::chrono::steady_clock;

void require(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(code));
  std::exit(1);
}

/// The number of this process on its machine, whoever started it: torchrun, srun or mpirun.
int local_rank() {
  for (const char* name : {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

/// Chooses a device and says which; skips the whole program where there is none.
void choose_device() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    std::printf("skipped: no usable GPU (%s)\n", cudaGetErrorString(code));
    std::exit(kSkipped);
  }
  const int device = local_rank() % count;
  std::size_t free_bytes = 0, total_bytes = 0;
  require(cudaSetDevice(device), "cudaSetDevice");
  require(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  std::printf("device    %d, %.1f GiB, %.1f GiB of it free\n", device, static_cast<double>(total_bytes) / (1 << 30),
              static_cast<double>(free_bytes) / (1 << 30));
}

/// One step: tensors of a shape of its own, a stream-ordered workspace, a check of what was written. Returns the time
/// that cudaMalloc and cudaFree took.
Clock::duration run_step(int step, cudaStream_t stream) {
  const std::size_t rows = 64 + 32 * static_cast<std::size_t>(step % 7);
  std::vector<void*> tensors(kTensors);
  auto begin = Clock::now();
  for (int i = 0; i < kTensors; ++i) require(cudaMalloc(&tensors[i], (rows + i) * kWidth), "cudaMalloc");
  auto spent = Clock::now() - begin;

  void* workspace = nullptr;
  require(cudaMallocAsync(&workspace, rows * kWidth * 4, stream), "cudaMallocAsync");
  require(cudaMemsetAsync(workspace, 0, rows * kWidth * 4, stream), "cudaMemsetAsync");
  for (void* tensor : tensors) require(cudaMemsetAsync(tensor, step, kWidth, stream), "cudaMemsetAsync");
  require(cudaFreeAsync(workspace, stream), "cudaFreeAsync");
  unsigned char back[64] = {};
  require(cudaMemcpyAsync(back, tensors[step % kTensors], sizeof back, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  for (unsigned char byte : back) {
    if (byte == step) continue;
    std::fprintf(stderr, "step %d: the device holds %d where %d was written\n", step, byte, step);
    std::exit(1);
  }

  begin = Clock::now();
  for (void* tensor : tensors) require(cudaFree(tensor), "cudaFree");
  return spent + (Clock::now() - begin);
}

}  // namespace

int main() {
  choose_device();
  cudaStream_t stream;
  require(cudaStreamCreate(&stream), "cudaStreamCreate");
  std::chrono::duration<double, std::micro> spent{};
  for (int step = 0; step < kSteps; ++step) spent += run_step(step, stream);
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::printf("steps     %d, each with %d cudaMalloc and one cudaMallocAsync\n", kSteps, kTensors);
  std::printf("contents  as written\n");
  std::printf("cost      %.2f us for one cudaMalloc and cudaFree\n", spent.count() / (kSteps * kTensors));
}
