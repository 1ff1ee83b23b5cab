// Threads with a pthread_cancel pending enter the library where it opens files, writes, pauses or asks the driver: the calls do what they always do, errno stays, the
// cancellation comes at the program's own next point, and its cleanup handlers may free and unlock. Whether the driver's own waits are cancellation points nobody has seen;
// those of the simulated one are, so there is no native run of them.
//! env CUSIM_MEMORY=64MiB
//! check "cancelled 1, cleaned up 1" in out
//! case first_call
//! args first plain
//! case first_call_preallocated
//! args first plain
//! env CUPOOL_POLICY=preallocate
//! case first_call_on_segments
//! args first plain
//! env CUPOOL_BACKING=segments
//! case first_call_async
//! args first plain
//! env CUPOOL_POLICY=async
//! case first_call_platform
//! args first plain
//! env CUPOOL_POLICY=platform
//! case first_call_traced
//! args first plain
//! env CUPOOL_TRACE=run.trace
//! env CUPOOL_LOG=trace
//! env CUPOOL_LOG_FILE=run.log
//! case first_call_ordered
//! args first ordered
//! case out_of_memory
//! args later refused
//! ooms 1
//! stderr* .*
//! case out_of_memory_async
//! args later refused
//! env CUPOOL_POLICY=async
//! ooms 1
//! stderr* .*
//! case out_of_memory_platform
//! args later refused
//! env CUPOOL_POLICY=platform
//! ooms 1
//! stderr* .*
//! case miss_that_waits
//! args later waits
//! native skip
//! env CUSIM_CLOCK=real
//! case miss_that_waits_on_segments
//! args later waits
//! native skip
//! env CUSIM_CLOCK=real
//! env CUPOOL_BACKING=segments
//! case free_that_waits
//! args later waits
//! native skip
//! env CUSIM_CLOCK=real
//! env CUPOOL_FREE=sync
//! case everything_else
//! args later others
//! case everything_else_platform
//! args later others
//! env CUPOOL_POLICY=platform
#include <errno.h>
#include <pthread.h>

#include "cusim.h"
#include "victim.h"

enum { kErrno = 1234, kMost = 32 };

static CUcontext context;
static CUstream stream;
static const char* what;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_cleaned_up;
static const char* texts[kMost]; /* printed afterwards: that is a cancellation point itself */
static int codes[kMost], errnos[kMost], noted;

#define NOTE(call)              \
  do {                          \
    errno = kErrno;             \
    texts[noted] = #call;       \
    codes[noted] = (int)(call); \
    errnos[noted++] = errno;    \
  } while (0)

static void clean_up(void* block) {
  NOTE(cuMemFree(*(CUdeviceptr*)block));
  is_cleaned_up = pthread_mutex_unlock(&lock) == 0;
}

static void use(void) {
  CUdeviceptr block = 0, other = 0;
  size_t free_bytes = 0, total_bytes = 0;
  if (strcmp(what, "ordered") == 0) {
    NOTE(cuMemAllocAsync(&block, MIB, stream));
    NOTE(cuMemFreeAsync(block, stream));
  } else if (strcmp(what, "refused") == 0) {
    NOTE(cuMemAlloc(&block, GIB));
  } else if (strcmp(what, "waits") == 0) {
    NOTE(cuMemAlloc(&block, 40 * MIB));
    NOTE(cusim_launch_fill(stream, block, 64, 1, 30000000));
    NOTE(cuMemFree(block));
    NOTE(cuMemAlloc(&block, 41 * MIB)); /* there is room only where the first one was */
    NOTE(cuMemFree(block));
  } else if (strcmp(what, "others") == 0) {
    CUcontext made = NULL;
    NOTE(cuMemGetInfo(&free_bytes, &total_bytes));
    NOTE(cuMemAlloc(&block, MIB));
    NOTE(cuMemGetAddressRange(&other, &total_bytes, block + 5));
    NOTE(cuStreamSynchronize(stream));
    NOTE(cuMemFree(block));
    NOTE(create_context(&made, 0, 0));
    NOTE(cuMemAlloc(&block, MIB));
    NOTE(cuCtxDestroy(made));
  }
}

static void* work(void* unused) {
  CUdeviceptr block = 0;
  MUST(cuCtxSetCurrent(context));
  pthread_mutex_lock(&lock);
  pthread_cleanup_push(&clean_up, &block);
  pthread_cancel(pthread_self());
  use();
  NOTE(cuMemAlloc(&block, 2 * MIB));
  pthread_testcancel();
  pthread_cleanup_pop(1);
  return unused;
}

int main(int argc, char** argv) {
  what = argc > 2 ? argv[2] : "plain";
  context = enter_device(0);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if (argc > 1 && strcmp(argv[1], "later") == 0) MUST(cuMemFree(allocate(MIB)));
  pthread_t thread;
  void* returned = NULL;
  pthread_create(&thread, NULL, &work, NULL);
  pthread_join(thread, &returned);
  for (int i = 0; i < noted; ++i) printf("%s: %d, errno %d\n", texts[i], codes[i], errnos[i]);
  printf("cancelled %d, cleaned up %d\n", returned == PTHREAD_CANCELED, is_cleaned_up);
  MUST(cuMemFree(allocate(MIB)));
  return 0;
}
