// A driver that waits for all work while it maps memory, as it may: a thread whose allocation it keeps behind a kernel keeps no other thread,
// of which one releases the kernel. (Natively an allocation waits for nothing; the first thread's does here.)
//! native skip
//! seconds 20
//! env CUSIM_NOTE_SYNC=1
//! env CUPOOL_BACKING=pages
//! case grow
//! check c["allocations"] == 5 and c["native_fallbacks"] >= 1
//! case preallocate
//! env CUPOOL_PREALLOCATE=64MiB
//! check c["allocations"] == 5
#include <pthread.h>
#include <stdatomic.h>

#include "cusim.h"
#include "victim.h"

static CUcontext context;
static atomic_int has_block;

static void* take(void* unused) {
  MUST(cuCtxSetCurrent(context));
  allocate(32 * MIB);
  atomic_store(&has_block, 1);
  return unused;
}

int main(void) {
  context = enter_device(0);
  CUstream stream;
  static volatile uint32_t flag;
  pthread_t thread;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cusim_launch_wait_host(stream, &flag));
  pthread_create(&thread, NULL, take, NULL);
  while (cusim_calls("cuMemSetAccess") == 0) sched_yield();
  for (int i = 0; i < 4; ++i) {
    const CUdeviceptr block = allocate(4 * MIB);
    MUST(cuMemsetD8Async(block, i, 4 * MIB, stream));
  }
  if (atomic_load(&has_block)) return 5; /* the driver has not kept it */
  flag = 1;
  pthread_join(thread, NULL);
  MUST(cuCtxSynchronize());
  return 0;
}
