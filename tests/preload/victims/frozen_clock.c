// The clock stands still, as under libfaketime with a fixed time: a request that has to be refused is, and does not wait for a time that never comes.
//! seconds 60
//! ooms any
//! stderr* .*
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>

#include "cusim.h"
#include "victim.h"

// Before libc's in the order of symbols.
__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec* now) {
  static struct timespec first;
  if (clock != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, clock, now);
  if (first.tv_sec == 0) syscall(SYS_clock_gettime, clock, &first);
  *now = first;
  return 0;
}

int main(void) {
  static volatile uint32_t flag;
  CUstream stream;
  CUdeviceptr first = 0, second = 0;
  enter_device(0);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAllocAsync(&first, 5 * GIB, stream));
  MUST(cusim_launch_wait_host(stream, &flag));
  MUST(cuMemFreeAsync(first, stream));
  printf("%d\n", (int)cuMemAlloc(&second, 5 * GIB));
  flag = 1;
  MUST(cuStreamSynchronize(stream));
  return 0;
}
