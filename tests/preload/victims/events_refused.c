// A driver that covers no context by an event, and says so by another code than NOT_SUPPORTED: each free waits from some refusals on, and what was freed before comes back.
//! native same
//! env CUSIM_MEMORY=1GiB
//! env CUSIM_FAIL=cuCtxRecordEvent:1:800:1000000
//! stderr cupool\[<pid>\]: warning: the driver does not support cuCtxRecordEvent: .*
//! case segments
//! env CUPOOL_BACKING=segments
//! case pages
//! env CUPOOL_BACKING=pages
//! case async
//! env CUPOOL_POLICY=async
#include "cusim.h"
#include "victim.h"

int main(void) {
  enter_device(0);
  CUdeviceptr blocks[15] = {0};
  for (size_t i = 0; i < 200; ++i) {
    CUdeviceptr* block = &blocks[i % 15];
    if (*block != 0) MUST(cuMemFree(*block));
    *block = allocate(50 * MIB + i * 512);
    MUST(cusim_launch_fill(NULL, *block, 4096, 1, 1000000));
  }
  puts("served");
  return 0;
}
