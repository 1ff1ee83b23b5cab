// What small blocks that stay keep from large ones: pairs of a large and a small block until nine tenths of what is free are taken, then the large
// ones are freed, and the largest block that is to be had is looked for. An ordinary CUDA program. pinned_blocks --help says how it is called and
// what it prints.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
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

constexpr const char* kUsage =
    "Usage: pinned_blocks LARGE_KIB SMALL_KIB\n"
    "Takes pairs of a large and a small block until nine tenths of what is free are taken, frees the large ones, and looks for the largest block "
    "that is to be had.\n"
    "One line of JSON: free_bytes at the start; live_blocks and live_bytes that stay; largest_bytes that were to be had; missing_bytes, that are "
    "neither.\n"
    "Runs on the driver that it is started with, alone or under the pool:\n"
    "  CUSIM_MEMORY=80GiB LD_LIBRARY_PATH=build/sim LD_PRELOAD=build/libcupool.so build/bench/pinned_blocks 32768 40\n";
}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && (std::strcmp(arguments[1], "--help") == 0 || std::strcmp(arguments[1], "-h") == 0)) return std::fputs(kUsage, stdout) < 0 ? 1 : 0;
  const std::size_t large_bytes = count == 3 ? std::strtoull(arguments[1], nullptr, 10) << 10 : 0;
  const std::size_t small_bytes = count == 3 ? std::strtoull(arguments[2], nullptr, 10) << 10 : 0;
  if (large_bytes == 0 || small_bytes == 0) return std::fprintf(stderr, "pinned_blocks: wanted LARGE_KIB and SMALL_KIB, above 0: see --help\n"), 2;
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
  std::printf("{\"free_bytes\": %zu, \"live_blocks\": %zu, \"live_bytes\": %zu, \"largest_bytes\": %zu, \"missing_bytes\": %zu}\n", free_bytes,
              large.size(), live_bytes, found_bytes, free_bytes - live_bytes - found_bytes);
  return 0;
}
