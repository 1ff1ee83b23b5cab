// See failing_memory.hpp.
#include "tests/unit/heap/failing_memory.hpp"

#include <cstdlib>
#include <new>

namespace failing_memory {
thread_local int g_fail_in = -1;
namespace {
bool fails_now() { return g_fail_in >= 0 && g_fail_in-- == 0; }
void* take(std::size_t bytes) { return fails_now() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes); }
}  // namespace
}  // namespace failing_memory

void* operator new(std::size_t bytes) {
  void* memory = failing_memory::take(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return failing_memory::take(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return failing_memory::take(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

extern "C" void* __real_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __wrap_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __wrap_calloc(std::size_t count, std::size_t bytes) { return failing_memory::fails_now() ? nullptr : __real_calloc(count, bytes); }

extern "C" void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
extern "C" void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes);
extern "C" void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return failing_memory::fails_now() ? nullptr : __real_aligned_alloc(alignment, bytes);
}
