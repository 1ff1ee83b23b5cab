// A program with data that can be checked: 4 threads, each with two streams, allocate, fill, copy, free early and check.
// A block that is reused before the work on it is done shows as wrong bytes. Knows nothing of cupool; one JSON line per
// fact on stdout, exit 1 when a byte is wrong or a call fails. Filled by kernels (nvcc) or by copies (g++).
#include "tests/gpu/programs/verify.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 4, kRounds = 60;
std::atomic<std::uint64_t> g_wrong_bytes{0}, g_checked_bytes{0}, g_blocks{0};

void need(cudaError_t code, const char* step) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "verify: %s answered %s\n", step, cudaGetErrorName(code));
  std::exit(1);
}

void* allocate(std::size_t bytes) {
  void* address = nullptr;
  need(cudaMalloc(&address, bytes), "cudaMalloc");
  ++g_blocks;
  return address;
}

void check(const void* address, std::size_t bytes, unsigned seed, cudaStream_t stream) {
  g_wrong_bytes += verify::wrong_bytes(address, bytes, seed, stream);
  g_checked_bytes += bytes;
}

/// The source is freed while the stream still reads it, and its size is asked for again at once.
void free_while_used(std::size_t bytes, unsigned seed, cudaStream_t first, cudaStream_t second) {
  void* source = allocate(bytes);
  void* target = allocate(bytes);
  verify::fill(source, bytes, seed, first);
  need(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, first), "cudaMemcpyAsync");
  need(cudaFree(source), "cudaFree");
  void* again = allocate(bytes);
  verify::fill(again, bytes, seed + 1, second);
  check(target, bytes, seed, first);
  check(again, bytes, seed + 1, second);
  need(cudaFree(target), "cudaFree");
  need(cudaFree(again), "cudaFree");
}

void work(unsigned thread) {
  std::mt19937 random(thread);
  cudaStream_t first = nullptr, second = nullptr;
  need(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  need(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  struct Kept {
    void* address;
    std::size_t bytes;
    unsigned seed;
  };
  std::vector<Kept> kept;
  for (unsigned round = 0; round < kRounds; ++round) {
    const std::size_t bytes = std::size_t{1} << (random() % 14 + 9);
    const unsigned seed = thread * 10000 + round * 10;
    free_while_used(bytes + random() % 512, seed, first, second);
    kept.push_back({allocate(bytes), bytes, seed + 5});
    verify::fill(kept.back().address, bytes, seed + 5, second);
    if (kept.size() < 8) continue;
    const std::size_t chosen = random() % kept.size();
    check(kept[chosen].address, kept[chosen].bytes, kept[chosen].seed, second);
    need(cudaFree(kept[chosen].address), "cudaFree");
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  for (const Kept& block : kept) {
    check(block.address, block.bytes, block.seed, second);
    need(cudaFree(block.address), "cudaFree");
  }
  need(cudaStreamDestroy(first), "cudaStreamDestroy");
  need(cudaStreamDestroy(second), "cudaStreamDestroy");
}

void tell(const char* question, std::uint64_t value) {
  std::printf("{\"question\": \"%s\", \"answer\": %llu}\n", question, static_cast<unsigned long long>(value));
}

}  // namespace

int main() {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  need(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  tell("blocks allocated", g_blocks);
  tell("bytes checked", g_checked_bytes);
  tell("wrong bytes", g_wrong_bytes);
  return g_wrong_bytes == 0 ? 0 : 1;
}
