// Pair costs of PyTorch's own allocator, called as its tensors call it, without the interpreter. Compiled by gpu-check
// on its target against the headers and libraries of the PyTorch that is installed there (c10 alone); PYTORCH_ALLOC_CONF
// chooses among its allocators. Prints answers.
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

#include <cstdio>
#include <exception>
#include <string>

#include "tests/gpu/programs/pair_cost.hpp"

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

class Torch {
 public:
  explicit Torch(std::size_t bytes) : bytes_(bytes) {
    // A stream of its own for each thread. Not c10's: its streams want libtorch_cuda. The runtime is the one that c10 has loaded.
    auto* const create = reinterpret_cast<decltype(&cudaStreamCreateWithFlags)>(dlsym(RTLD_DEFAULT, "cudaStreamCreateWithFlags"));
    if (create != nullptr) static_cast<void>(create(&stream_, cudaStreamNonBlocking));
  }
  [[nodiscard]] std::uintptr_t take() const {
    try {
      return stream_ == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(allocator::raw_alloc_with_stream(bytes_, stream_));
    } catch (const std::exception&) {
      return 0;
    }
  }
  void give(std::uintptr_t block) const { allocator::raw_delete(reinterpret_cast<void*>(block)); }
  void settle() const {}

 private:
  std::size_t bytes_;
  cudaStream_t stream_ = nullptr;
};

void tell(const std::string& question, const std::string& figures) {
  if (figures.empty()) std::printf("{\"question\": \"%s\", \"left_out\": \"an allocation failed\"}\n", question.c_str());
  else std::printf("{\"question\": \"%s\", \"answer\": %s}\n", question.c_str(), figures.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  try {
    allocator::init(1);
    pair_cost::measure_all<Torch>(count > 1 ? words[1] : "PyTorch's allocator", tell);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pairs_torch: %s\n", error.what());
    return 1;
  }
}
