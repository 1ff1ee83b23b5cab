// The lives of a primary context: released to nothing and retained again, reset while others hold it, ended by the last of several
// holders. What one life held is gone with it: not served again, not freed twice, no longer counted; until then nothing of it is touched.
//! misuse
//! check c["live_blocks"]["current"] == 0 and c["deferred_bytes"]["current"] == 0 and sim["devices"][0]["used_bytes"] == c["reserved_bytes"]["current"]
//! check c["foreign_frees"] >= 0 and not ooms
//! case released
//! args released
//! case counted
//! args counted
//! case reset_while_held
//! args reset
//! case flags_between
//! args flags
//! case handle_comes_again
//! env CUSIM_REUSE_HANDLES=1
//! args released
#include <pthread.h>

#include "cusim.h"
#include "victim.h"

static CUcontext g_context;
static pthread_barrier_t g_barrier;

static void fill(CUdeviceptr block, unsigned char value) {
  MUST(cuMemsetD8(block, value, MIB));
  MUST(cuCtxSynchronize());
}

static void tell(const char* when, CUdeviceptr block) {
  unsigned char back = 0;
  unsigned flags = 0;
  int active = 0;
  MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
  const int code = cuMemcpyDtoH(&back, block + MIB - 1, 1);
  printf("%s: active %d, flags %u, copy %d, byte %d\n", when, active, flags, code, code == 0 ? back : 0);
}

/* With the context current, and dead. */
static void use_dead(CUdeviceptr old) {
  CUdeviceptr address = 0, base = 0;
  size_t bytes = 0, total = 0, pitch = 0;
  CUstream stream = NULL;
  SAY(cuMemAlloc(&address, MIB));
  SAY(cuMemAllocPitch(&address, &pitch, 100, 10, 4));
  SAY(cuMemAllocAsync(&address, MIB, stream));
  SAY(cuMemFreeAsync(old, stream));
  SAY(cuMemFree(old));
  SAY(cuMemGetInfo(&bytes, &total));
  SAY(cuMemGetAddressRange(&base, &bytes, old));
}

/* The next life: the old address means nothing, everything else works, and the memory is the program's own. */
static void live_again(CUdeviceptr old, unsigned char mark) {
  MUST(cuDevicePrimaryCtxRetain(&g_context, 0));
  MUST(cuCtxSetCurrent(g_context));
  SAY(cuMemFree(old));
  CUdeviceptr blocks[3];
  for (int i = 0; i < 3; ++i) blocks[i] = allocate(MIB);
  for (int i = 0; i < 3; ++i) fill(blocks[i], (unsigned char)(mark + i));
  for (int i = 0; i < 3; ++i) tell("new life", blocks[i]);
  for (int i = 0; i < 3; ++i) SAY(cuMemFree(blocks[i]));
  CUdeviceptr address = 0;
  SAY(cuMemAllocAsync(&address, MIB, NULL));
  SAY(cuMemFreeAsync(address, NULL));
  SAY(cuCtxSynchronize());
}

static void* hold(void* block) {
  MUST(cuCtxSetCurrent(g_context));
  pthread_barrier_wait(&g_barrier);
  pthread_barrier_wait(&g_barrier); /* meanwhile it is reset */
  use_dead(*(CUdeviceptr*)block);
  MUST(cuDevicePrimaryCtxRetain(&g_context, 0)); /* somebody else's holder is still one */
  CUdeviceptr fresh = allocate(MIB);
  fill(fresh, 77);
  tell("other thread", fresh);
  SAY(cuMemFree(fresh));
  return NULL;
}

int main(int argc, char** argv) {
  const char* way = argc > 1 ? argv[1] : "released";
  g_context = enter_device(0);
  CUdeviceptr old = allocate(MIB), freed = allocate(40 * MIB);
  fill(old, 9);
  MUST(cusim_launch_spin(NULL, 100000));
  MUST(cuMemFree(freed)); /* still deferred when the context ends */
  if (strcmp(way, "counted") == 0) {
    for (int i = 0; i < 3; ++i) MUST(cuDevicePrimaryCtxRetain(&g_context, 0));
    for (int i = 0; i < 3; ++i) {
      SAY(cuDevicePrimaryCtxRelease(0));
      tell("held", old);
      MUST(cuMemFree(allocate((size_t)(i + 1) * MIB)));
    }
  }
  if (strcmp(way, "reset") == 0) {
    pthread_t thread;
    MUST(cuDevicePrimaryCtxRetain(&g_context, 0));
    pthread_barrier_init(&g_barrier, NULL, 2);
    pthread_create(&thread, NULL, hold, &old);
    pthread_barrier_wait(&g_barrier);
    SAY(cuDevicePrimaryCtxReset(0));
    pthread_barrier_wait(&g_barrier);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; ++i) SAY(cuDevicePrimaryCtxRelease(0));
  }
  SAY(cuDevicePrimaryCtxRelease(0));
  if (strcmp(way, "flags") == 0) SAY(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_YIELD));
  use_dead(old);
  live_again(old, 20);
  SAY(cuDevicePrimaryCtxReset(0));
  live_again(old, 30);
  SAY(cuDevicePrimaryCtxReset(0));
  SAY(cuDevicePrimaryCtxReset(0));
  while (cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS) printf("released\n");
  return 0;
}
