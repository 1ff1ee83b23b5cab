// What small blocks that stay keep from large ones: pairs of a large and a small block until nine tenths of what is free are taken, then the large ones are
// freed, and the largest block that is to be had is looked for. An ordinary CUDA program.
//
//   pinned_blocks LARGE_KIB SMALL_KIB    prints a line of JSON: bytes that live, of the largest block, and what is missing for everything else
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {
void* allocate(std::size_t bytes) {
  void* block = nullptr;
  return cudaMalloc(&block, bytes) == cudaSuccess ? block : nullptr;
}

std::size_t largest_bytes(std::size_t most_bytes) {
  constexpr std::size_t kExact_bytes = 1 << 20;
  std::size_t low = 0;
  std::size_t high = most_bytes;
  while (high - low > kExact_bytes) {
    const std::size_t middle = low + (high - low) / 2;
    void* block = allocate(middle);
    (block != nullptr ? low : high) = middle;
    if (block != nullptr) cudaFree(block);
  }
  return low;
}
}  // namespace

int main(int count, char** arguments) {
  const std::size_t large_bytes = count == 3 ? std::strtoull(arguments[1], nullptr, 10) << 10 : 0;
  const std::size_t small_bytes = count == 3 ? std::strtoull(arguments[2], nullptr, 10) << 10 : 0;
  if (large_bytes == 0 || small_bytes == 0) return std::fprintf(stderr, "usage: pinned_blocks LARGE_KIB SMALL_KIB\n"), 2;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return std::fprintf(stderr, "pinned_blocks: no GPU\n"), 5;
  std::vector<void*> large;
  std::size_t live_bytes = 0;
  for (std::size_t taken_bytes = large_bytes + small_bytes; taken_bytes <= free_bytes / 10 * 9; taken_bytes += large_bytes + small_bytes) {
    large.push_back(allocate(large_bytes));
    if (large.back() == nullptr || allocate(small_bytes) == nullptr) return std::fprintf(stderr, "pinned_blocks: out of memory\n"), 1;
    live_bytes += small_bytes;
  }
  for (void* block : large) cudaFree(block);
  const std::size_t found_bytes = largest_bytes(free_bytes);
  std::printf("{\"free_bytes\": %zu, \"live_blocks\": %zu, \"live_bytes\": %zu, \"largest_bytes\": %zu, \"missing_bytes\": %zu}\n", free_bytes, large.size(), live_bytes, found_bytes,
              free_bytes - live_bytes - found_bytes);
  return 0;
}
