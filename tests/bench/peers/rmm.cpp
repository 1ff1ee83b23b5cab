// RMM's pools, compiled from the headers of its wheel (scripts/compare-peers builds this). Stream-ordered, as RMM's users call them.
// ALLOCATOR: pool (pool_memory_resource over cudaMalloc, half of the device's free memory at first, as rmm.reinitialize does) or
// arena (arena_memory_resource over cudaMalloc, with all of it: an arena does not grow).
//
// The functions that librmm.so defines over a CUDA runtime of its own, which refuses every driver but NVIDIA's, are defined here over
// the runtime that this program is linked with: all that the pools call, or one would fail unseen (an arena that does not wait for
// the stream of a large free hands out memory that is in use).
#include <rmm/cuda_device.hpp>
#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>

#include <cstdlib>

#include "tests/bench/cuda_streams.hpp"
#include "tests/bench/peers/peer.hpp"

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
std::size_t percent_of_free_device_memory(int percent) {
  return available_device_memory().first / 100 * static_cast<std::size_t>(percent) / 256 * 256;
}
cuda_set_device_raii::cuda_set_device_raii(cuda_device_id wanted)
    : old_device_{get_current_cuda_device()}, needs_reset_{wanted.value() >= 0 && old_device_ != wanted} {
  if (needs_reset_) bench::check("cudaSetDevice", cudaSetDevice(wanted.value()));
}
cuda_set_device_raii::~cuda_set_device_raii() noexcept {
  if (needs_reset_) cudaSetDevice(old_device_.value());
}
void cuda_stream_view::synchronize() const { bench::check("cudaStreamSynchronize", cudaStreamSynchronize(stream_)); }
void cuda_stream_view::synchronize_no_throw() const noexcept {
  if (cudaStreamSynchronize(stream_) != cudaSuccess) std::abort();
}
}  // namespace rmm

namespace {

using namespace bench;

template <class Resource> class RmmPool : public Allocator {
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
  void enter_thread() override { CudaStreams::enter_thread(); }
  void* stream_handle(std::uint32_t stream) override { return streams_[stream]; }
  bool is_stream_ordered() const override { return true; }

 private:
  CudaStreams streams_;
  rmm::mr::cuda_memory_resource upstream_;
  Resource resource_;
};

}  // namespace

namespace bench {

const char* const kPeerAllocators = "pool|arena";

std::unique_ptr<Allocator> open_peer(const std::string& name) {
  check("cudaFree(0)", cudaFree(nullptr));
  try {
    using Upstream = rmm::mr::cuda_memory_resource;
    if (name == "pool") return std::make_unique<RmmPool<rmm::mr::pool_memory_resource<Upstream>>>(rmm::percent_of_free_device_memory(50));
    if (name == "arena") return std::make_unique<RmmPool<rmm::mr::arena_memory_resource<Upstream>>>(rmm::percent_of_free_device_memory(100));
  } catch (const rmm::bad_alloc& error) {
    throw AllocatorFailure(error.what(), true);
  }
  return nullptr;
}

}  // namespace bench
