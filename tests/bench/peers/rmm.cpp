// Plays recorded jobs through RMM's pools, compiled from the headers of its wheel (scripts/compare-peers builds this).
// ALLOCATOR: pool (pool_memory_resource over cudaMalloc, half of the device's free memory at first, as rmm.reinitialize does) or
// arena (arena_memory_resource over cudaMalloc, with all of it: an arena does not grow).
//
// The few functions that librmm.so defines over a CUDA runtime of its own, which refuses every driver but NVIDIA's, are defined
// here over the runtime that this program is linked with.
#include <rmm/cuda_device.hpp>
#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>

#include "tests/bench/cuda_streams.hpp"
#include "tests/bench/player.hpp"

namespace rmm {
cuda_device_id get_current_cuda_device() {
  int device = 0;
  bench::check("cudaGetDevice", cudaGetDevice(&device));
  return cuda_device_id{device};
}
int get_num_cuda_devices() {
  int count = 0;
  bench::check("cudaGetDeviceCount", cudaGetDeviceCount(&count));
  return count;
}
std::pair<std::size_t, std::size_t> available_device_memory() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  bench::check("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes));
  return {free_bytes, total_bytes};
}
std::size_t percent_of_free_device_memory(int percent) { return available_device_memory().first / 100 * static_cast<std::size_t>(percent) / 256 * 256; }
cuda_set_device_raii::cuda_set_device_raii(cuda_device_id wanted) : old_device_{get_current_cuda_device()}, needs_reset_{wanted.value() >= 0 && old_device_ != wanted} {
  if (needs_reset_) bench::check("cudaSetDevice", cudaSetDevice(wanted.value()));
}
cuda_set_device_raii::~cuda_set_device_raii() noexcept {
  if (needs_reset_) cudaSetDevice(old_device_.value());
}
}  // namespace rmm

namespace {

using namespace bench;

template <class Resource>
class RmmPool : public Allocator {
 public:
  explicit RmmPool(std::size_t bytes) : resource_(&upstream_, bytes) {}
  void* allocate(std::size_t bytes, std::uint32_t stream) override {
    try {
      return resource_.allocate_async(bytes, rmm::cuda_stream_view{streams_[stream]});
    } catch (const rmm::bad_alloc& error) {
      throw AllocatorFailure(error.what(), true);
    }
  }
  void release(void* address, std::size_t bytes, std::uint32_t stream) override {
    resource_.deallocate_async(address, bytes, rmm::cuda_stream_view{streams_[stream]});
  }
  void* stream_handle(std::uint32_t stream) override { return streams_[stream]; }
  bool is_stream_ordered() const override { return true; }

 private:
  CudaStreams streams_;
  rmm::mr::cuda_memory_resource upstream_;
  Resource resource_;
};

std::unique_ptr<Allocator> open(const Order& order) {
  check("cudaFree(0)", cudaFree(nullptr));
  try {
    using Upstream = rmm::mr::cuda_memory_resource;
    if (order.allocator == "pool") return std::make_unique<RmmPool<rmm::mr::pool_memory_resource<Upstream>>>(rmm::percent_of_free_device_memory(50));
    if (order.allocator == "arena") return std::make_unique<RmmPool<rmm::mr::arena_memory_resource<Upstream>>>(rmm::percent_of_free_device_memory(100));
  } catch (const rmm::bad_alloc& error) {
    throw AllocatorFailure(error.what(), true);
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) { return play_main(argc, argv, "pool|arena", &open, cuda_copies()); }
