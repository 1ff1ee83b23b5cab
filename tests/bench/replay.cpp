// replay: an ordinary CUDA program. It allocates and frees what a recorded job allocated and freed, through
// cudaMalloc and cudaFree, and (with --verify) checks that every block still holds what was put into it.
// It knows nothing of cupool: it is what the demo and the benches run under it. Single-threaded.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "trace.hpp"

namespace {

constexpr int kExitBadTrace = 1;
constexpr int kExitUsage = 2;
constexpr int kExitCudaError = 3;
constexpr int kExitCorrupt = 4;

/// What a block must hold at its start and at its end: nobody else's bytes look like this.
using Stamp = std::array<std::uint64_t, 2>;
Stamp stamp_of(std::uint32_t slot) { return {0x9e3779b97f4a7c15ULL * (slot + 1ULL), ~std::uint64_t{slot}}; }

struct Block {
  char* address = nullptr;
  std::uint64_t bytes = 0;
};

struct CudaFailure {
  const char* call;
  cudaError_t code;
};
struct Corruption {
  std::uint32_t slot;
};

void check(const char* call, cudaError_t code) {
  if (code != cudaSuccess) throw CudaFailure{call, code};
}

class Player {
 public:
  explicit Player(const trace::Trace& trace, bool verify) : trace_(trace), verify_(verify), blocks_(trace.allocations) {}

  void play() {
    for (; next_ < trace_.events.size(); ++next_) {
      const trace::Event& event = trace_.events[next_];
      if (event.is_free) {
        release(event.slot);
      } else {
        allocate(event.slot, event.bytes);
      }
    }
  }
  /// What is left at the end of the trace; a training job leaves its weights.
  void release_rest() {
    for (std::uint32_t slot = 0; slot < blocks_.size(); ++slot) {
      if (blocks_[slot].address != nullptr) release(slot);
    }
  }
  std::size_t position() const { return next_; }
  std::uint64_t verified() const { return verified_; }

 private:
  void allocate(std::uint32_t slot, std::uint64_t bytes) {
    void* address = nullptr;
    check("cudaMalloc", cudaMalloc(&address, bytes));
    blocks_[slot] = {static_cast<char*>(address), bytes};
    if (!verify_) return;
    const Stamp stamp = stamp_of(slot);
    const std::size_t length = std::min<std::size_t>(bytes, sizeof(stamp));
    check("cudaMemcpy", cudaMemcpy(address, stamp.data(), length, cudaMemcpyHostToDevice));
    check("cudaMemcpy", cudaMemcpy(blocks_[slot].address + bytes - length, stamp.data(), length, cudaMemcpyHostToDevice));
  }

  void release(std::uint32_t slot) {
    Block& block = blocks_[slot];
    if (verify_) verify(slot, block);
    check("cudaFree", cudaFree(block.address));
    block.address = nullptr;
  }

  void verify(std::uint32_t slot, const Block& block) {
    const Stamp wanted = stamp_of(slot);
    const std::size_t length = std::min<std::size_t>(block.bytes, sizeof(wanted));
    Stamp found{};
    // The end was stamped last: where a small block's two stamps overlap, only the end is whole.
    check("cudaMemcpy", cudaMemcpy(found.data(), block.address + block.bytes - length, length, cudaMemcpyDeviceToHost));
    if (std::memcmp(found.data(), wanted.data(), length) != 0) throw Corruption{slot};
    if (block.bytes >= 2 * sizeof(wanted)) {
      check("cudaMemcpy", cudaMemcpy(found.data(), block.address, length, cudaMemcpyDeviceToHost));
      if (std::memcmp(found.data(), wanted.data(), length) != 0) throw Corruption{slot};
    }
    ++verified_;
  }

  const trace::Trace& trace_;
  bool verify_;
  std::vector<Block> blocks_;
  std::size_t next_ = 0;
  std::uint64_t verified_ = 0;
};

void print_outcome(const trace::Trace& trace, const Player& player, double seconds) {
  std::printf("replay: %llu allocations, %llu frees, peak %.2f GiB requested, %.3f s", static_cast<unsigned long long>(trace.allocations),
              static_cast<unsigned long long>(trace.frees), static_cast<double>(trace.peak_live_bytes) / (1 << 30), seconds);
  if (player.verified() > 0) std::printf(", %llu blocks verified", static_cast<unsigned long long>(player.verified()));
  std::printf("\n");
}

int play(const std::string& path, bool verify, bool free_rest) {
  const trace::Trace trace = trace::load(path);
  Player player(trace, verify);
  try {
    check("cudaFree(0)", cudaFree(nullptr));  // makes the context, outside the timed part
    const auto start = std::chrono::steady_clock::now();
    player.play();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (free_rest) player.release_rest();
    print_outcome(trace, player, seconds.count());
    return 0;
  } catch (const CudaFailure& failure) {
    std::fprintf(stderr, "replay: %s failed at event %zu of %zu: %s\n", failure.call, player.position() + 1, trace.events.size(),
                 cudaGetErrorString(failure.code));
    return kExitCudaError;
  } catch (const Corruption& corruption) {
    std::fprintf(stderr, "replay: block %u does not hold what was written into it (event %zu)\n", corruption.slot, player.position() + 1);
    return kExitCorrupt;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string path;
  bool verify = false;
  bool free_rest = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--verify") {
      verify = true;
    } else if (argument == "--free-rest") {
      free_rest = true;
    } else if (path.empty() && argument.rfind("--", 0) != 0) {
      path = argument;
    } else {
      path.clear();
      break;
    }
  }
  if (path.empty()) {
    std::fprintf(stderr, "usage: replay [--verify] [--free-rest] FILE.trace[.gz]\n");
    return kExitUsage;
  }
  try {
    return play(path, verify, free_rest);
  } catch (const trace::BadTrace& error) {
    std::fprintf(stderr, "replay: %s\n", error.what());
    return kExitBadTrace;
  }
}
