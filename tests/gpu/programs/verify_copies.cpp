// The pattern of a seed is one byte value everywhere: written by cudaMemsetAsync, checked by a copy to the host.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/gpu/programs/verify.hpp"

namespace verify {
namespace {

void need(cudaError_t code, const char* step) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "verify: %s answered %s\n", step, cudaGetErrorName(code));
  std::exit(1);
}

unsigned char byte_of(unsigned seed) { return static_cast<unsigned char>(seed * 31 + 7); }

}  // namespace

void fill(void* address, std::size_t bytes, unsigned seed, cudaStream_t stream) {
  need(cudaMemsetAsync(address, byte_of(seed), bytes, stream), "cudaMemsetAsync");
}

std::uint64_t wrong_bytes(const void* address, std::size_t bytes, unsigned seed, cudaStream_t stream) {
  std::vector<unsigned char> copy(bytes);
  need(cudaMemcpyAsync(copy.data(), address, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  need(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  std::uint64_t wrong = 0;
  for (const unsigned char byte : copy) wrong += byte != byte_of(seed) ? 1 : 0;
  return wrong;
}

}  // namespace verify
