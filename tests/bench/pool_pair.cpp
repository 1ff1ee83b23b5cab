// Cost of one malloc and free in the library, pool hit, deferral included: ns per pair, median and spread of rounds.
//
// Beside mimalloc (when it can be loaded) and the simulated driver's own calls on the same machine in the same run. A
// figure, not a test: `ninja pool_pair && ./pool_pair`.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "config/options.hpp"
#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/device/pool_set.hpp"
#include "tests/sim/cusim.h"
#include "tests/sim/sim_driver_api.hpp"

using namespace cupool;

namespace {

constexpr int kRounds = 21;
constexpr int kPairs = 40'000;

/// A pool on a fresh simulated driver with 140 GiB.
struct Pool {
  explicit Pool(const config::Options& options) {
    cusim_configure("MEMORY", "140GiB");
    cusim_reset();
    const DriverApi& api = cusim_driver_api();
    api.cuInit(0);
    api.cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    lives = std::make_unique<observe::LiveDevice[]>(1);
    pools = std::make_unique<PoolSet>(api, options, lives.get(), 1);
  }
  CUdeviceptr allocate(std::size_t bytes) { return pools->allocate(context, bytes, "cuMemAlloc_v2").value(); }

  CUcontext context = nullptr;
  std::unique_ptr<observe::LiveDevice[]> lives;
  std::unique_ptr<PoolSet> pools;
};

/// Processor time of this thread, so that a busy machine is no finding.
template <class F> double pair_ns(F&& one_pair) {
  const std::uint64_t start_ns = clock_now_ns(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < kPairs; ++i) one_pair(i);
  return static_cast<double>(clock_now_ns(CLOCK_THREAD_CPUTIME_ID) - start_ns) / kPairs;
}

template <class F> void report(const std::string& name, F&& one_pair) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) rounds.push_back(pair_ns(one_pair));
  std::sort(rounds.begin(), rounds.end());
  std::printf("%-52s median %7.1f ns   min %7.1f   max %7.1f\n", name.c_str(), rounds[kRounds / 2], rounds.front(), rounds.back());
}

struct NamedMode { const char* name; config::FreeMode free; };

void bench_pool(const NamedMode& mode, std::size_t bytes, std::size_t standing_blocks) {
  config::Options options;
  options.free = mode.free;
  Pool rig(options);
  for (std::size_t i = 0; i < standing_blocks; ++i) rig.allocate(512 * (1 + i % 8));
  std::vector<CUdeviceptr> ring(64);
  for (CUdeviceptr& slot : ring) slot = rig.allocate(bytes);
  PoolSet& pools = *rig.pools;
  const CUcontext context = rig.context;
  report(std::string("cupool ") + mode.name + ", " + std::to_string(bytes) + " B, " + std::to_string(standing_blocks) + " live blocks", [&](int i) {
    CUdeviceptr& slot = ring[static_cast<std::size_t>(i) % ring.size()];
    pools.free(slot);
    slot = pools.allocate(context, bytes, "cuMemAlloc_v2").value();
  });
}

void bench_threads(unsigned threads) {
  Pool rig(config::Options{});
  PoolSet& pools = *rig.pools;
  const CUcontext context = rig.context;
  for (int i = 0; i < 256; ++i) pools.free(rig.allocate(4096));
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t)
    workers.emplace_back([&] {
      cuCtxSetCurrent(context);
      for (int i = 0; i < kPairs * 4; ++i) pools.free(pools.allocate(context, 4096, "cuMemAlloc_v2").value());
    });
  for (std::thread& worker : workers) worker.join();
  const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  std::printf("%-52s %7.1f ns per pair overall\n", ("cupool deferred, 4096 B, threads: " + std::to_string(threads)).c_str(),
              ns / (kPairs * 4.0 * threads));
}

void bench_mimalloc(std::size_t bytes) {
  void* library = ::dlopen("libmimalloc.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = ::dlopen("libmimalloc.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  auto* take = reinterpret_cast<void* (*)(std::size_t)>(::dlsym(library, "mi_malloc"));
  auto* give = reinterpret_cast<void (*)(void*)>(::dlsym(library, "mi_free"));
  std::vector<void*> ring(64);
  for (void*& slot : ring) slot = take(bytes);
  report("mimalloc, " + std::to_string(bytes) + " B", [&](int i) {
    void*& slot = ring[static_cast<std::size_t>(i) % ring.size()];
    give(slot);
    slot = take(bytes);
  });
}

}  // namespace

int main() {
  for (const std::size_t bytes : {std::size_t{512}, std::size_t{4096}, 2 * kMiB}) {
    bench_pool({"immediate", config::FreeMode::immediate}, bytes, 0);
    bench_pool({"deferred", config::FreeMode::deferred}, bytes, 0);
  }
  bench_pool({"deferred", config::FreeMode::deferred}, 4096, 1'000);
  bench_pool({"deferred", config::FreeMode::deferred}, 4096, 1'000'000);
  for (const unsigned threads : {1u, 2u}) bench_threads(threads);
  for (const std::size_t bytes : {std::size_t{512}, std::size_t{4096}, 2 * kMiB}) bench_mimalloc(bytes);
  const Pool rig(config::Options{});
  report("the simulated driver's own pair", [&](int) {
    CUdeviceptr block = 0;
    cuMemAlloc_v2(&block, 4096);
    cuMemFree_v2(block);
  });
}
