// Random blocks that keep a device full: how many are refused, although by their bytes, in whole pages, they would fit. An ordinary CUDA program.
// full_device --help says how it is called and what it prints.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace {
constexpr std::size_t kPage_bytes = std::size_t{2} << 20;
constexpr std::size_t kLeast_bytes = std::size_t{4} << 10;
constexpr std::size_t kLargestShare = 8;  ///< of the device
constexpr std::size_t kSteps = 3000;

constexpr const char* kUsage =
    "Usage: full_device [SEED [PERCENT]]\n"
    "3,000 allocations of random blocks, from 4 KiB to an eighth of what is free at the start, as many of each octave. Before each, random blocks are freed until\n"
    "everything, in pages of 2 MiB, would fit into PERCENT (98) of that.\n"
    "One line of JSON: allocations; refused; peak_of_free, the most that lived at once.\n"
    "Runs on the driver that it is started with, alone or under the pool:\n"
    "  CUSIM_MEMORY=80GiB LD_LIBRARY_PATH=build/sim LD_PRELOAD=build/libcupool.so build/bench/full_device 1\n";

struct Block {
  void* address;
  std::size_t bytes;
};

std::size_t in_pages(std::size_t bytes) { return bytes < kPage_bytes / 2 ? bytes : (bytes + kPage_bytes - 1) / kPage_bytes * kPage_bytes; }

/// false: it is no number up to `most`.
bool read(const char* text, unsigned long most, unsigned long& value) {
  char* end = nullptr;
  value = std::strtoul(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == '\0' && value <= most;
}
}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && (std::strcmp(arguments[1], "--help") == 0 || std::strcmp(arguments[1], "-h") == 0)) return std::fputs(kUsage, stdout) < 0 ? 1 : 0;
  unsigned long seed = 1;
  unsigned long percent = 98;
  if (count > 3 || (count > 1 && !read(arguments[1], 4'000'000'000, seed)) || (count > 2 && !read(arguments[2], 100, percent)))
    return std::fprintf(stderr, "full_device: wanted SEED, and PERCENT up to 100: see --help\n"), 2;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return std::fprintf(stderr, "full_device: no GPU\n"), 5;
  const std::size_t most_bytes = free_bytes / 100 * percent;
  const double octaves = std::log2(static_cast<double>(free_bytes / kLargestShare) / static_cast<double>(kLeast_bytes));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> octave(0, octaves);
  std::vector<Block> live;
  std::size_t live_bytes = 0;
  std::size_t peak_bytes = 0;
  std::size_t refused = 0;
  for (std::size_t step = 0; step < kSteps; ++step) {
    const auto bytes = static_cast<std::size_t>(static_cast<double>(kLeast_bytes) * std::exp2(octave(random)));
    while (!live.empty() && live_bytes + in_pages(bytes) > most_bytes) {
      std::swap(live[random() % live.size()], live.back());
      live_bytes -= in_pages(live.back().bytes);
      if (cudaFree(live.back().address) != cudaSuccess) return std::fprintf(stderr, "full_device: a free failed\n"), 1;
      live.pop_back();
    }
    void* address = nullptr;
    if (cudaMalloc(&address, bytes) != cudaSuccess) {
      ++refused;
      continue;
    }
    live.push_back({address, bytes});
    live_bytes += in_pages(bytes);
    peak_bytes = std::max(peak_bytes, live_bytes);
  }
  std::printf("{\"allocations\": %zu, \"refused\": %zu, \"peak_of_free\": %.4f}\n", kSteps, refused, static_cast<double>(peak_bytes) / static_cast<double>(free_bytes));
  return 0;
}
