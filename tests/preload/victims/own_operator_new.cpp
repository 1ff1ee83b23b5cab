// The host replaces operator new and malloc's family counts on it: we never call the host's operator new (ours is inside).
//! check c["allocations"] == 200
#include <new>

#include "victim.h"

static long calls_of_new = 0;

void* operator new(std::size_t bytes) {
  ++calls_of_new;
  return malloc(bytes);
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, std::size_t) noexcept { free(memory); }

int main() {
  enter_device(0);
  const long before = calls_of_new;
  for (int i = 0; i < 200; ++i) MUST(cuMemFree(allocate(static_cast<size_t>(i + 1) * KIB)));
  printf("our calls of the host's operator new: %ld\n", calls_of_new - before);
  return 0;
}
