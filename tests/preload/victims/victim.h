/* What the victims share: print the outcome of a call (SAY), or insist on it (MUST). Nothing here knows of cupool. */
#ifndef VICTIM_H
#define VICTIM_H
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* Prints "text: code" and is the code; works for CUresult, cudaError_t and int. */
#define SAY(call) say_code(#call, (int)(call))
/* The call must succeed: otherwise the victim itself is wrong, and exits with 99. */
#define MUST(call) must_be_zero(#call, (int)(call), __LINE__)

static inline int say_code(const char* text, int code) {
  printf("%s: %d\n", text, code);
  fflush(stdout);
  return code;
}

static inline void must_be_zero(const char* text, int code, int line) {
  if (code == 0) return;
  printf("victim line %d: %s gave %d\n", line, text, code);
  fflush(stdout);
  exit(99);
}

/* cuInit and the primary context of `device`, current. */
static inline CUcontext enter_device(int device) {
  CUcontext context = NULL;
  CUdevice handle;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&handle, device));
  MUST(cuDevicePrimaryCtxRetain(&context, handle));
  MUST(cuCtxSetCurrent(context));
  return context;
}

/* cuCtxCreate changed its arguments in CUDA 13; this form is in every driver since 3.2. */
#ifdef __cplusplus
extern "C"
#endif
    CUresult
    cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);
#define create_context cuCtxCreate_v2

/* A green context of device 0, with some of its multiprocessors. */
static inline CUgreenCtx create_green(void) {
  CUdevResource all, part;
  unsigned count = 1;
  CUdevResourceDesc descriptor;
  CUgreenCtx green = NULL;
  MUST(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  MUST(cuDevSmResourceSplitByCount(&part, &count, &all, NULL, 0, 16));
  MUST(cuDevResourceGenerateDesc(&descriptor, &part, 1));
  MUST(cuGreenCtxCreate(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  return green;
}

static inline CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr address = 0;
  MUST(cuMemAlloc(&address, bytes));
  return address;
}
#endif
