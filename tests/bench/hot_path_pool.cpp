// hot_path_pool: the pairs of hot_path in the library itself, on the simulated driver in-process: what a pair costs without the
// preloaded entry points. ALLOCATOR: pool, pool-async (stream-ordered), pool-immediate (CUPOOL_FREE=immediate: no deferral).
#include <atomic>

#include "config/options.hpp"
#include "pairs.hpp"
#include "pool/device/pool_set.hpp"
#include "tests/sim/cusim.h"
#include "tests/sim/sim_driver_api.hpp"

namespace {

using namespace cupool;
using bench::Allocator;
using bench::AllocatorFailure;

CUdeviceptr number_of(void* address) { return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address)); }

class Pool : public Allocator {
 public:
  explicit Pool(config::FreeMode free) {
    cusim_configure("MEMORY", "200GiB");
    cusim_reset();
    const DriverApi& api = cusim_driver_api();
    api.cuInit(0);
    api.cuDevicePrimaryCtxRetain(&context_, 0);
    config::Options options;
    options.free = free;
    live_ = std::make_unique<observe::LiveDevice[]>(1);
    pools_ = std::make_unique<PoolSet>(api, options, live_.get(), 1);
  }
  void enter_thread() override { cuCtxSetCurrent(context_); }
  void* allocate(std::size_t bytes, std::uint32_t) override { return unwrap(pools_->allocate(context_, bytes, "cuMemAlloc_v2")); }
  void release(void* address, std::size_t, std::uint32_t) override { pools_->free(number_of(address)); }

 protected:
  static void* unwrap(const Result<CUdeviceptr>& block) {
    if (!block.ok()) throw AllocatorFailure("the pool failed with " + std::to_string(block.code()), true);
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(block.value()));
  }
  PoolSet& pools() { return *pools_; }
  CUcontext context() const { return context_; }

 private:
  CUcontext context_ = nullptr;
  std::unique_ptr<observe::LiveDevice[]> live_;
  std::unique_ptr<PoolSet> pools_;
};

/// Each thread on a stream of its own.
class PoolOnStreams : public Pool {
 public:
  PoolOnStreams() : Pool(config::FreeMode::deferred) {}
  void enter_thread() override {
    Pool::enter_thread();
    cuStreamCreate(&stream_.handle, CU_STREAM_NON_BLOCKING);
    stream_.identity = next_identity_.fetch_add(1);
  }
  void* allocate(std::size_t bytes, std::uint32_t) override { return unwrap(pools().allocate_on(context(), bytes, stream_, 1, "cuMemAllocAsync")); }
  void release(void* address, std::size_t, std::uint32_t) override { pools().free_on(number_of(address), context(), stream_); }

 private:
  std::atomic<std::uint64_t> next_identity_{1};
  static thread_local StreamName stream_;
};
thread_local StreamName PoolOnStreams::stream_;

std::unique_ptr<Allocator> open(const std::string& name) {
  if (name == "pool") return std::make_unique<Pool>(config::FreeMode::deferred);
  if (name == "pool-async") return std::make_unique<PoolOnStreams>();
  if (name == "pool-immediate") return std::make_unique<Pool>(config::FreeMode::immediate);
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) { return bench::pairs_main(argc, argv, &open); }
