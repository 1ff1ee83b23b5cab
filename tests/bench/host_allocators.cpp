// The yardsticks: glibc's malloc and mimalloc, on host memory that nobody touches. Both are loaded by their own names, so that a
// preloaded allocator does not stand in for them.
#include <dlfcn.h>

#include "allocator.hpp"

namespace bench {
namespace {

class HostAllocator : public Allocator {
 public:
  HostAllocator(std::initializer_list<const char*> libraries, const char* allocate, const char* release) {
    void* library = nullptr;
    for (const char* name : libraries) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) throw AllocatorFailure(std::string("cannot load ") + *libraries.begin());
    allocate_ = reinterpret_cast<void* (*)(std::size_t)>(dlsym(library, allocate));
    release_ = reinterpret_cast<void (*)(void*)>(dlsym(library, release));
    if (allocate_ == nullptr || release_ == nullptr) throw AllocatorFailure(std::string(allocate) + " not found");
  }
  void* allocate(std::size_t bytes, std::uint32_t) override {
    void* const address = allocate_(bytes);
    if (address == nullptr) throw AllocatorFailure("malloc failed", true);
    return address;
  }
  void release(void* address, std::size_t, std::uint32_t) override { release_(address); }

 private:
  void* (*allocate_)(std::size_t) = nullptr;
  void (*release_)(void*) = nullptr;
};

}  // namespace

std::unique_ptr<Allocator> open_host_allocator(const std::string& name) {
  if (name == "glibc") return std::make_unique<HostAllocator>(std::initializer_list<const char*>{"libc.so.6"}, "malloc", "free");
  if (name == "mimalloc") {
    return std::make_unique<HostAllocator>(std::initializer_list<const char*>{"libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so"}, "mi_malloc",
                                           "mi_free");
  }
  return nullptr;
}

}  // namespace bench
