// The pattern of a seed is a hash of the position: written and checked by kernels, each slow on purpose, so that a block
// that is handed out too early is still being read or written.
#include <cstdio>
#include <cstdlib>

#include "tests/gpu/programs/verify.hpp"

namespace verify {
namespace {

constexpr int kBlocks = 64, kThreadsPerBlock = 128;
constexpr unsigned long long kDelay_ns = 200000;

void need(cudaError_t code, const char* step) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "verify: %s answered %s\n", step, cudaGetErrorName(code));
  std::exit(1);
}

__device__ unsigned long long timer_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ unsigned char byte_at(std::size_t position, unsigned seed) {
  return static_cast<unsigned char>((position * 2654435761u + seed * 40503u) >> 13);
}

__global__ void fill_slowly(unsigned char* bytes, std::size_t count, unsigned seed) {
  const unsigned long long start = timer_ns();
  while (timer_ns() - start < kDelay_ns) {
  }
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) bytes[i] = byte_at(i, seed);
}

__global__ void count_wrong(const unsigned char* bytes, std::size_t count, unsigned seed, unsigned long long* wrong) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    if (bytes[i] != byte_at(i, seed)) atomicAdd(wrong, 1ull);
  }
}

}  // namespace

void fill(void* address, std::size_t bytes, unsigned seed, cudaStream_t stream) {
  fill_slowly<<<kBlocks, kThreadsPerBlock, 0, stream>>>(static_cast<unsigned char*>(address), bytes, seed);
  need(cudaGetLastError(), "a kernel launch");
}

std::uint64_t wrong_bytes(const void* address, std::size_t bytes, unsigned seed, cudaStream_t stream) {
  unsigned long long* counter = nullptr;
  unsigned long long wrong = 0;
  need(cudaMalloc(&counter, sizeof *counter), "cudaMalloc");
  need(cudaMemsetAsync(counter, 0, sizeof *counter, stream), "cudaMemsetAsync");
  count_wrong<<<kBlocks, kThreadsPerBlock, 0, stream>>>(static_cast<const unsigned char*>(address), bytes, seed, counter);
  need(cudaGetLastError(), "a kernel launch");
  need(cudaMemcpyAsync(&wrong, counter, sizeof wrong, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  need(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  need(cudaFree(counter), "cudaFree");
  return wrong;
}

}  // namespace verify
