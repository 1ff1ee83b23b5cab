// replay: an ordinary CUDA program. It allocates and frees what a recorded job allocated and freed, through cudaMalloc and
// cudaFree or (--allocator cuda-async) cudaMallocAsync and cudaFreeAsync, and checks that every block still holds what was put
// into it: with --verify by copies, with --pending by kernels that are still running when the block is freed.
// It knows nothing of cupool: it is what the demo and the benches run under it. Single-threaded.
#include <cuda_runtime_api.h>

#include "cuda_streams.hpp"
#include "player.hpp"

namespace {

using namespace bench;

class PlainCalls : public Allocator {
 public:
  PlainCalls() { check("cudaFree(0)", cudaFree(nullptr)); }  // makes the context, outside the timed part
  void* allocate(std::size_t bytes, std::uint32_t) override {
    void* address = nullptr;
    check("cudaMalloc", cudaMalloc(&address, bytes));
    return address;
  }
  void release(void* address, std::size_t, std::uint32_t) override { check("cudaFree", cudaFree(address)); }
  void* stream_handle(std::uint32_t stream) override { return streams_[stream]; }
  void wait_for_device() override { check("cudaDeviceSynchronize", cudaDeviceSynchronize()); }

 private:
  CudaStreams streams_;
};

class StreamOrderedCalls : public Allocator {
 public:
  StreamOrderedCalls() { check("cudaFree(0)", cudaFree(nullptr)); }
  void* allocate(std::size_t bytes, std::uint32_t stream) override {
    void* address = nullptr;
    check("cudaMallocAsync", cudaMallocAsync(&address, bytes, streams_[stream]));
    return address;
  }
  void release(void* address, std::size_t, std::uint32_t stream) override { check("cudaFreeAsync", cudaFreeAsync(address, streams_[stream])); }
  void* stream_handle(std::uint32_t stream) override { return streams_[stream]; }
  bool is_stream_ordered() const override { return true; }
  void wait_for_device() override { check("cudaDeviceSynchronize", cudaDeviceSynchronize()); }

 private:
  CudaStreams streams_;
};

std::unique_ptr<Allocator> open(const Order& order) {
  if (order.allocator.empty() || order.allocator == "cuda") return std::make_unique<PlainCalls>();
  if (order.allocator == "cuda-async") return std::make_unique<StreamOrderedCalls>();
  return open_host_allocator(order.allocator);
}

}  // namespace

int main(int argc, char** argv) { return play_main(argc, argv, "cuda|cuda-async|glibc|mimalloc", &open, cuda_copies()); }
