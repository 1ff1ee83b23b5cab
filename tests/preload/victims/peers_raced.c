// One thread gives another device access to a memory pool, which cupool does by linking contexts, while the other enables and disables the same
// access for itself, and contexts come and go: each thread is answered as if it were alone.
//! env CUSIM_DEVICES=2
//! check "wrong: 0" in out
//! case default
//! case delayed
//! preload libdelays.so|
#include <pthread.h>

#include "cusim.h"
#include "victim.h"

#define ROUNDS 60

static CUcontext home;
static CUcontext guest;
static CUmemoryPool pool;
static pthread_barrier_t meeting;
static int wrong;

static void expect(CUresult code, CUresult expected, const char* what) {
  if (code == expected) return;
  fprintf(stderr, "%s: %d, not %d\n", what, (int)code, (int)expected);
  __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
}

static void* share(void* unused) {
  CUmemAccessDesc access = {0};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 1;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuCtxSetCurrent(home));
  for (int round = 0; round < ROUNDS; ++round) {
    pthread_barrier_wait(&meeting);
    expect(cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS, "access to the pool");
    pthread_barrier_wait(&meeting);
  }
  return unused;
}

int main(void) {
  home = enter_device(0);
  pthread_t sharer;
  CUdeviceptr block = 0;
  pthread_barrier_init(&meeting, NULL, 2);
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  MUST(cuMemAllocAsync(&block, MIB, NULL));
  pthread_create(&sharer, NULL, share, NULL);
  for (int round = 0; round < ROUNDS; ++round) {
    MUST(create_context(&guest, 0, 1));
    pthread_barrier_wait(&meeting);
    expect(cuCtxEnablePeerAccess(home, 0), CUDA_SUCCESS, "enable");
    expect(cuCtxEnablePeerAccess(home, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "enable again");
    expect(cuCtxDisablePeerAccess(home), CUDA_SUCCESS, "disable");
    expect(cuCtxDisablePeerAccess(home), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "disable again");
    if (round % 2 != 0) expect(cuCtxDestroy(guest), CUDA_SUCCESS, "destroy"); /* while it may be linked */
    pthread_barrier_wait(&meeting);
    if (round % 2 == 0) expect(cuCtxDestroy(guest), CUDA_SUCCESS, "destroy");
  }
  pthread_join(sharer, NULL);
  MUST(cuCtxSetCurrent(home));
  MUST(cuMemFreeAsync(block, NULL));
  MUST(cuCtxSynchronize());
  printf("wrong: %d\n", wrong);
  return 0;
}
