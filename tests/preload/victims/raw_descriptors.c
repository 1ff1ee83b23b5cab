// What NCCL does without cuMem buffers: a dma-buf descriptor of the very pointer that cuMemAlloc gave. Natively a block of 2 MiB and more begins on 2 MiB, so whole host
// pages of it are always to be had; here as well, whatever small and odd blocks lie around, and also for what lies at page offsets in it.
//! check c["allocations"] == 64
//! case default
//! case segments
//! env CUPOOL_BACKING=segments
//! case preallocated
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_PREALLOCATE=1GiB
#include "raw_descriptors.h"

int main(void) {
  enter_device(0);
  export_buffers(cuMemGetHandleForAddressRange);
  return 0;
}
