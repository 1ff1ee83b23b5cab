// Several contexts of one device, pushed, popped and handed between threads: a block belongs to the context in which it was allocated, is freed
// under any, also one of another device, and is whole until then whatever becomes of the others.
//! env CUSIM_DEVICES=2
//! check [x["counters"]["live_blocks"]["current"] for x in report["devices"]] == [0, 0] and "wrong: 0" in out
//! case default
//! case platform
//! env CUPOOL_POLICY=platform
//! case async
//! env CUPOOL_POLICY=async
//! case synchronous_frees
//! env CUPOOL_FREE=sync
//! case created_in_newer_forms
//! args newer
#include <pthread.h>

#include "victim.h"

#undef cuCtxCreate
#ifdef __cplusplus
extern "C"
#endif
    CUresult
    cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count, unsigned flags, CUdevice device);

static CUcontext g_contexts[4];
static CUdeviceptr g_blocks[4][8];
static int g_wrong;

static void tell(CUdeviceptr block) {
  CUcontext owner = NULL;
  MUST(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block));
  for (int i = 0; i < 4; ++i)
    if (g_contexts[i] == owner) printf("owner %d\n", i);
}

static void check(int context, int block) {
  unsigned char back[2] = {0, 0};
  const unsigned char mark = (unsigned char)(context * 16 + block + 1);
  MUST(cuMemcpyDtoH(&back[0], g_blocks[context][block], 1));
  MUST(cuMemcpyDtoH(&back[1], g_blocks[context][block] + (size_t)(block + 1) * 100 * KIB - 1, 1));
  g_wrong += back[0] != mark || back[1] != mark;
}

static void fill(int context) {
  for (int i = 0; i < 8; ++i) {
    const size_t bytes = (size_t)(i + 1) * 100 * KIB;
    g_blocks[context][i] = allocate(bytes);
    MUST(cuMemsetD8(g_blocks[context][i], (unsigned char)(context * 16 + i + 1), bytes));
  }
  MUST(cuCtxSynchronize());
}

/* The context floats: it comes from another thread's stack, and goes on to the next. */
static void* fill_floating(void* argument) {
  const int context = (int)(intptr_t)argument;
  CUcontext popped = NULL;
  MUST(cuCtxPushCurrent(g_contexts[0]));
  MUST(cuCtxPushCurrent(g_contexts[context]));
  fill(context);
  MUST(cuCtxPopCurrent(&popped));
  MUST(popped == g_contexts[context] ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
  tell(g_blocks[context][0]);
  CUdeviceptr below = allocate(MIB);
  tell(below);
  MUST(cuMemFree(below));
  return NULL;
}

int main(int argc, char** argv) {
  (void)argv;
  CUcontext popped = NULL;
  pthread_t thread;
  MUST(cuInit(0));
  MUST(create_context(&g_contexts[0], 0, 0));
  if (argc > 1) MUST(cuCtxCreate_v3(&g_contexts[1], NULL, 0, 0, 0));
  else MUST(create_context(&g_contexts[1], 0, 0));
  if (argc > 1) MUST(cuCtxCreate_v4(&g_contexts[2], NULL, 0, 0));
  else MUST(create_context(&g_contexts[2], 0, 0));
  for (int i = 0; i < 3; ++i) MUST(cuCtxPopCurrent(&popped));
  MUST(cuDevicePrimaryCtxRetain(&g_contexts[3], 1));
  for (intptr_t i = 0; i < 4; ++i) {
    pthread_create(&thread, NULL, fill_floating, (void*)i);
    pthread_join(thread, NULL);
  }
  MUST(cuCtxSetCurrent(g_contexts[3]));
  for (int i = 0; i < 3; ++i) MUST(cuMemFree(g_blocks[i][0])); /* another device's context is current */
  MUST(cuCtxSetCurrent(g_contexts[1]));
  MUST(cuMemFree(g_blocks[3][0]));
  MUST(cuMemFree(g_blocks[0][1])); /* another context of the device */
  for (int i = 0; i < 3; ++i)
    for (int block = 2; block < 8; ++block) check(i, block);
  SAY(cuCtxDestroy(g_contexts[1]));
  MUST(cuCtxSetCurrent(g_contexts[2]));
  for (int block = 2; block < 8; ++block) check(0, block), check(2, block);
  for (int round = 0; round < 100; ++round) MUST(cuMemFree(allocate((size_t)(round % 9 + 1) * 100 * KIB)));
  for (int block = 2; block < 8; ++block) check(0, block), check(2, block);
  SAY(cuCtxDestroy(g_contexts[2]));
  MUST(cuCtxSetCurrent(g_contexts[3]));
  for (int block = 2; block < 8; ++block) SAY(cuMemFree(g_blocks[0][block])); /* the device's only context left is not current */
  for (int block = 1; block < 8; ++block) SAY(cuMemFree(g_blocks[3][block]));
  MUST(cuCtxSetCurrent(g_contexts[0]));
  MUST(cuMemFree(allocate(50 * MIB)));
  SAY(cuCtxDestroy(g_contexts[0]));
  printf("wrong: %d\n", g_wrong);
  return g_wrong != 0;
}
