// hot_path: what one free and one allocation cost (pairs.hpp). An ordinary program on the driver API: it takes whichever driver libcuda.so.1 is, with
// or without a preload. ALLOCATOR: driver (cuMemAlloc), driver-async (cuMemAllocAsync, a stream per thread), driver-pool (cuMemAllocFromPoolAsync
// from the default pool), or a yardstick: glibc, mimalloc. The script hot_path.py runs all of them in turn.
#include <cuda.h>
#include <dlfcn.h>

#include "pairs.hpp"

namespace {

using bench::Allocator;
using bench::AllocatorFailure;

void check(const char* call, CUresult code) {
  if (code == CUDA_SUCCESS) return;
  throw AllocatorFailure(std::string(call) + " failed with " + std::to_string(code), code == CUDA_ERROR_OUT_OF_MEMORY);
}

CUdeviceptr number_of(void* address) { return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address)); }
void* pointer_to(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

class Driver {
 public:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw AllocatorFailure(dlerror());
    CUdevice device = 0;
    check("cuInit", find<decltype(cuInit)>("cuInit")(0));
    check("cuDeviceGet", find<decltype(cuDeviceGet)>("cuDeviceGet")(&device, 0));
    check("cuDevicePrimaryCtxRetain", find<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context_, device));
  }
  template <class Function> Function* find(const char* name) const {
    auto* const function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr) throw AllocatorFailure(std::string(name) + " not found");
    return function;
  }
  void enter_thread() const { check("cuCtxSetCurrent", set_current_(context_)); }

 private:
  void* library_;
  CUcontext context_ = nullptr;
  decltype(&cuCtxSetCurrent) set_current_ = find<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent");
};

class Plain : public Allocator {
 public:
  void* allocate(std::size_t bytes, std::uint32_t) override {
    CUdeviceptr address = 0;
    check("cuMemAlloc", allocate_(&address, bytes));
    return pointer_to(address);
  }
  void release(void* address, std::size_t, std::uint32_t) override { check("cuMemFree", free_(number_of(address))); }
  void enter_thread() override { driver_.enter_thread(); }

 private:
  Driver driver_;
  decltype(&cuMemAlloc) allocate_ = driver_.find<decltype(cuMemAlloc)>("cuMemAlloc_v2");
  decltype(&cuMemFree) free_ = driver_.find<decltype(cuMemFree)>("cuMemFree_v2");
};

class StreamOrdered : public Allocator {
 public:
  void* allocate(std::size_t bytes, std::uint32_t) override {
    CUdeviceptr address = 0;
    check("cuMemAllocAsync", allocate_(&address, bytes, stream_));
    return pointer_to(address);
  }
  void release(void* address, std::size_t, std::uint32_t) override { check("cuMemFreeAsync", free_(number_of(address), stream_)); }
  void enter_thread() override {
    driver_.enter_thread();
    check("cuStreamCreate", create_(&stream_, CU_STREAM_NON_BLOCKING));
  }

 protected:
  const Driver& driver() const { return driver_; }
  static CUstream stream() { return stream_; }

 private:
  Driver driver_;
  decltype(&cuMemAllocAsync) allocate_ = driver_.find<decltype(cuMemAllocAsync)>("cuMemAllocAsync");
  decltype(&cuMemFreeAsync) free_ = driver_.find<decltype(cuMemFreeAsync)>("cuMemFreeAsync");
  decltype(&cuStreamCreate) create_ = driver_.find<decltype(cuStreamCreate)>("cuStreamCreate");
  static thread_local CUstream stream_;
};
thread_local CUstream StreamOrdered::stream_ = nullptr;

/// The pool named, as TensorFlow and JAX do.
class FromPool : public StreamOrdered {
 public:
  FromPool() { check("cuDeviceGetDefaultMemPool", driver().find<decltype(cuDeviceGetDefaultMemPool)>("cuDeviceGetDefaultMemPool")(&pool_, 0)); }
  void* allocate(std::size_t bytes, std::uint32_t) override {
    CUdeviceptr address = 0;
    check("cuMemAllocFromPoolAsync", allocate_from_(&address, bytes, pool_, stream()));
    return pointer_to(address);
  }

 private:
  CUmemoryPool pool_ = nullptr;
  decltype(&cuMemAllocFromPoolAsync) allocate_from_ = driver().find<decltype(cuMemAllocFromPoolAsync)>("cuMemAllocFromPoolAsync");
};

std::unique_ptr<Allocator> open(const std::string& name) {
  if (name == "driver") return std::make_unique<Plain>();
  if (name == "driver-async") return std::make_unique<StreamOrdered>();
  if (name == "driver-pool") return std::make_unique<FromPool>();
  return bench::open_host_allocator(name);
}

}  // namespace

int main(int argc, char** argv) { return bench::pairs_main(argc, argv, &open); }
