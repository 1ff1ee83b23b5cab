// PyTorch's allocators, those of its wheel's libc10_cuda.so (scripts/compare-peers builds this), by the calls that it offers to other
// libraries: raw_alloc_with_stream and raw_delete.
// ALLOCATOR: torch. Which one, and how it is set up, says PYTORCH_ALLOC_CONF, as in any PyTorch program.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include "tests/bench/cuda_streams.hpp"
#include "tests/bench/peers/peer.hpp"

/// Exported by libc10_cuda.so for libtorch_cuda.so; in no header of the wheel.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*function)(DeviceIndex));
}

namespace {

using namespace bench;

class Torch : public Allocator {
 public:
  Torch() {
    check("cudaFree(0)", cudaFree(nullptr));
    int count = 0;
    check("cudaGetDeviceCount", cudaGetDeviceCount(&count));
    // As libtorch_cuda does when it is loaded and when CUDA is first used.
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    c10::cuda::detail::init_p2p_access_cache(count);
    c10::cuda::CUDACachingAllocator::init(count);
  }
  void* allocate(std::size_t bytes, std::uint32_t stream) override {
    try {
      return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, streams_[stream]);
    } catch (const c10::OutOfMemoryError& error) {
      throw AllocatorFailure(error.what_without_backtrace(), true);
    } catch (const c10::Error& error) {
      throw AllocatorFailure(error.what_without_backtrace());
    }
  }
  void release(void* address, std::size_t, std::uint32_t) override { c10::cuda::CUDACachingAllocator::raw_delete(address); }
  void enter_thread() override { CudaStreams::enter_thread(); }
  void* stream_handle(std::uint32_t stream) override { return streams_[stream]; }
  bool is_stream_ordered() const override { return true; }

 private:
  CudaStreams streams_;
};

}  // namespace

namespace bench {

const char* const kPeerAllocators = "torch";

std::unique_ptr<Allocator> open_peer(const std::string& name) { return name == "torch" ? std::make_unique<Torch>() : nullptr; }

}  // namespace bench
