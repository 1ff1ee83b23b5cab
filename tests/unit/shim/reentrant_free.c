/* A free of a pooled block by a thread that is already inside the library (the driver called back): it succeeds, the
 * driver never sees the address, and the block is free after the thread's next operation. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#define LOOK_UP(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(driver, #name)
#define EXPECT(condition) ((condition) ? (void)0 : (void)(++failures, printf("line %d: not %s\n", __LINE__, #condition)))

int main(void) {
  int failures = 0;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL) return printf("%s\n", dlerror()), 1;
  LOOK_UP(cuMemAlloc_v2, uint64_t*, size_t);
  LOOK_UP(cuMemFree_v2, uint64_t);
  LOOK_UP(cuMemGetInfo_v2, size_t*, size_t*);
  void (*call_back)(int (*)(uint64_t), uint64_t) = (void (*)(int (*)(uint64_t), uint64_t))dlsym(driver, "test_call_back");
  size_t (*freed_count)(void) = (size_t(*)(void))dlsym(driver, "test_freed_count");
  const int* result = (const int*)dlsym(driver, "test_call_result");
  uint64_t pooled = 0;
  uint64_t next = 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;

  EXPECT(cuMemAlloc_v2(&pooled, 4096) == 0);
  call_back(cuMemFree_v2, pooled);
  EXPECT(cuMemGetInfo_v2(&free_bytes, &total_bytes) == 0);
  EXPECT(*result == 0);
  EXPECT(freed_count() == 0);
  EXPECT(cuMemAlloc_v2(&next, 4096) == 0); /* books it: under CUPOOL_FREE=immediate the same bytes come again */
  EXPECT(next == pooled);
  call_back(cuMemFree_v2, 0x1234); /* not ours: re-entered or not, the driver's to refuse */
  EXPECT(cuMemGetInfo_v2(&free_bytes, &total_bytes) == 0);
  EXPECT(*result == 1 && freed_count() == 1);
  EXPECT(cuMemFree_v2(next) == 0);
  EXPECT(freed_count() == 1);
  return failures != 0;
}
