// One thread begins and ends the primary context again and again while another one, without a context, is refused memory outside the pool. To find out why, the pool asks the driver what it has left; it must not
// keep the context alive for that: it would end after the program's last release, and nothing here would hear of it.
//! native same
//! env CUPOOL_REPORT=none
//! report absent
//! stderr* (cupool\[<pid>\]: (warning: )?.*|  .*)
//! env CUPOOL_BACKING=segments
#include <pthread.h>
#include <stdatomic.h>

#include "cusim.h"
#include "victim.h"

enum { kRounds = 1000, kBlocks = 4 };

static atomic_int g_is_over;
static atomic_long g_refused;

static void* ask_for_too_much(void* unused) {
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  while (!g_is_over) {
    CUmemGenericAllocationHandle handle;
    g_refused += cuMemCreate(&handle, (size_t)1 << 40, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY;
  }
  return unused;
}

int main(void) {
  CUcontext context;
  pthread_t asker;
  MUST(cuInit(0));
  pthread_create(&asker, NULL, ask_for_too_much, NULL);
  int refused = 0;
  for (int round = 0; round < kRounds && refused == 0; ++round) {
    CUdeviceptr blocks[kBlocks];
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    for (int i = 0; i < kBlocks; ++i) {
      refused += cuMemAlloc(&blocks[i], MIB) != CUDA_SUCCESS;
      refused += cusim_launch_fill(NULL, blocks[i], MIB, 1, 10) != CUDA_SUCCESS;
    }
    refused += cuCtxSynchronize() != CUDA_SUCCESS;
    for (int i = 0; i < kBlocks / 2; ++i) refused += cuMemFree(blocks[i]) != CUDA_SUCCESS;
    MUST(cuCtxSetCurrent(NULL));
    MUST(cuDevicePrimaryCtxRelease(0));
  }
  g_is_over = 1;
  pthread_join(asker, NULL);
  printf("refused %d, asked %d\n", refused, g_refused != 0);
  return 0;
}
