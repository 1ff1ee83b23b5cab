// The streams of a recorded job on the CUDA runtime, made when they are first named, or one of each thread's own; and the
// runtime's errors as failures.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <unordered_map>

#include "allocator.hpp"
#include "player.hpp"

namespace bench {

inline void check(const char* call, cudaError_t code) {
  if (code == cudaSuccess) return;
  throw AllocatorFailure(std::string(call) + " failed", code == cudaErrorMemoryAllocation, cudaGetErrorString(code));
}

class CudaStreams {
 public:
  /// From now on this thread's calls are all on a stream of its own, whatever number they name.
  static void enter_thread() {
    if (own_ == nullptr) check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking));
  }
  cudaStream_t operator[](std::uint32_t number) {
    if (own_ != nullptr) return own_;
    cudaStream_t& stream = streams_[number];
    if (stream == nullptr) check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }

 private:
  static inline thread_local cudaStream_t own_ = nullptr;
  std::unordered_map<std::uint32_t, cudaStream_t> streams_;
};

inline Copies cuda_copies() {
  return {[](void* device, const void* host, std::size_t bytes) { check("cudaMemcpy", cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice)); },
          [](void* host, const void* device, std::size_t bytes) { check("cudaMemcpy", cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost)); }};
}

}  // namespace bench
