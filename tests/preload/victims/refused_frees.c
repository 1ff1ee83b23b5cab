// An illegal access breaks the device after an allocation was refused, and the driver refuses every free: those blocks live on. Nothing was
// allocated since the refusal, and the report does not say so.
//! native same
//! env CUSIM_MEMORY=1GiB
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report) .*)
//! check [o["served_since"] for o in report["ooms"]] == [False]
//! case platform
//! env CUPOOL_POLICY=platform
//! case async
//! env CUPOOL_POLICY=async
#include "cusim.h"
#include "victim.h"

int main(void) {
  CUdeviceptr block = 0;
  enter_device(0);
  const CUdeviceptr large = allocate(600 * MIB), small = allocate(4 * MIB);
  SAY(cuMemAlloc(&block, 500 * MIB));
  cusim_break_device(0, CUDA_ERROR_ILLEGAL_ADDRESS);
  SAY(cuMemFree(small));
  SAY(cuMemFreeAsync(large, NULL));
  return 0;
}
