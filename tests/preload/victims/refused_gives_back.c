// A request that the device has no room for any more, since another process (here a context of the program's own, past the pool) has taken some since the pool asked: it is
// refused, and what the pool had taken for it by then is the device's again. Natively a refusal takes nothing.
//! native same
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! env CUSIM_MEMORY=1GiB
//! env CUSIM_CONTEXT_BYTES=50MiB
//! case pages
//! env CUPOOL_BACKING=pages
//! case segments
//! env CUPOOL_BACKING=segments
//! case limited
//! env CUPOOL_LIMIT=999MiB
#include "cusim.h"
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(50 * MIB);
  CUcontext other = NULL, popped = NULL;
  MUST(cuCtxCreate(&other, NULL, 0, 0));
  MUST(cuCtxPopCurrent(&popped));
  const uint64_t before_bytes = cusim_used_bytes(0);
  CUdeviceptr block = 0;
  printf("%d\n", cuMemAlloc(&block, 900 * MIB));
  const uint64_t after_bytes = cusim_used_bytes(0);
  if (after_bytes != before_bytes) return fprintf(stderr, "%llu MiB more are taken\n", (unsigned long long)((after_bytes - before_bytes) / MIB)), 1;
  MUST(cuMemAlloc(&block, 800 * MIB));
  return 0;
}
