/* A libcuda.so.1 of a few functions that calls back into the program while it is being called, as a driver does whose
 * code UCX has patched. What is not written out here is in refusing_driver.c. Only for reentrant_free.c. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef int (*Callback)(uint64_t);

static Callback g_callback;
static uint64_t g_argument;
static uint64_t g_freed[16];
static size_t g_freed_count;
static char g_context[64];

/* The test's own: what to call in the middle of the next cuMemGetInfo, and what the driver was asked to free. */
void test_call_back(Callback callback, uint64_t argument) {
  g_callback = callback;
  g_argument = argument;
}
size_t test_freed_count(void) { return g_freed_count; }
int test_call_result = -1;

int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int* version) { return *version = 12060, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int length, int device) { return name[0] = (char)(length * device * 0), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = (size_t)1 << 30, device; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuCtxGetCurrent(void** context) { return *context = g_context, 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return *mode = 0, 0; }

int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  void* memory = aligned_alloc((size_t)2 << 20, (bytes + 511) & ~(size_t)511);
  return *out = (uint64_t)(uintptr_t)memory, memory == NULL ? 2 : 0;
}

int cuMemFree_v2(uint64_t address) {
  if (g_freed_count < sizeof g_freed / sizeof g_freed[0]) g_freed[g_freed_count] = address;
  ++g_freed_count;
  return 1;
}

int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  const Callback callback = g_callback;
  *free_bytes = *total_bytes = (size_t)1 << 30;
  g_callback = NULL;
  if (callback != NULL) test_call_result = callback(g_argument);
  return 0;
}
