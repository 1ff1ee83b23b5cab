// The handle of a destroyed stream or context is the next one's, as malloc makes it natively. What the pool remembers of the old one is not
// the new one's: no block is handed out while work of the old stream may touch it, and a context's memory is gone with it, a pool's not.
//! env CUSIM_REUSE_HANDLES=1
//! check c["live_blocks"]["current"] == 0 and "the handle came back: 1" in out
//! case stream_plain
//! args stream plain
//! case stream_ordered
//! args stream async
//! case stream_mixed
//! args stream mixed
//! case context
//! args context plain
//! case context_stream_ordered
//! args context async
#define _GNU_SOURCE
#include <dlfcn.h>

#include "victim.h"

typedef CUresult (*Fill)(CUstream, CUdeviceptr, size_t, unsigned char, unsigned long long);
typedef unsigned long long (*Mismatches)(void);

static const char* g_way;

static CUdeviceptr take(CUstream stream) {
  CUdeviceptr address = 0;
  if (strcmp(g_way, "plain") == 0) return allocate(MIB);
  MUST(cuMemAllocAsync(&address, MIB, stream));
  return address;
}

static void give(CUdeviceptr address, CUstream stream) {
  if (strcmp(g_way, "plain") == 0) MUST(cuMemFree(address));
  else MUST(cuMemFreeAsync(address, stream));
}

/* Long work of the old stream reads what it freed; the new one, which has its handle, writes what it got. */
static void use_streams(Fill fill, Fill check, Mismatches mismatches) {
  CUstream old, fresh;
  for (int round = 0; round < 20; ++round) {
    MUST(cuStreamCreate(&old, CU_STREAM_NON_BLOCKING));
    CUdeviceptr first = take(old);
    MUST(fill(old, first, MIB, 1, 10000));
    MUST(check(old, first, MIB, 1, 50000));
    give(first, old);
    MUST(cuStreamDestroy(old));
    MUST(cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING));
    if (round == 0) printf("the handle came back: %d\n", fresh == old);
    CUdeviceptr second = take(fresh);
    MUST(fill(fresh, second, MIB, 2, 10));
    if (strcmp(g_way, "mixed") == 0) {
      MUST(cuStreamSynchronize(fresh)); /* a plain free of such memory does not wait */
      MUST(cuMemFree(second));
    }
    if (strcmp(g_way, "mixed") != 0) give(second, fresh);
    MUST(cuStreamDestroy(fresh));
  }
  MUST(cuCtxSynchronize());
  printf("overwritten too early: %llu\n", mismatches());
}

static void use_contexts(void) {
  CUcontext old = NULL;
  for (int round = 0; round < 5; ++round) {
    CUcontext context;
    CUstream stream;
    unsigned char back = 0;
    MUST(create_context(&context, 0, 0));
    if (round == 1) printf("the handle came back: %d\n", context == old);
    old = context;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr kept = take(stream), freed = take(stream);
    MUST(cuMemsetD8Async(kept, (unsigned char)round, MIB, stream));
    give(freed, stream);
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(&back, kept, 1));
    printf("%d\n", back);
    if (round % 2) give(kept, stream);
    SAY(cuCtxDestroy(context));
    if (round % 2 || strcmp(g_way, "plain") == 0) continue;
    back = 99;
    SAY(cuMemcpyDtoH(&back, kept, 1));
    printf("still %d\n", back);
    SAY(cuMemFree(kept));
  }
}

int main(int argc, char** argv) {
  g_way = argc > 2 ? argv[2] : "plain";
  enter_device(0);
  if (strcmp(argv[1], "context") == 0) {
    use_contexts();
    MUST(cuMemFree(allocate(MIB)));
    return 0;
  }
  use_streams((Fill)dlsym(RTLD_DEFAULT, "cusim_launch_fill"), (Fill)dlsym(RTLD_DEFAULT, "cusim_launch_check"),
              (Mismatches)dlsym(RTLD_DEFAULT, "cusim_mismatched_bytes"));
  return 0;
}
