// CUPOOL_LOG=error: out of memory is the program's business, and told at `warn` only. The report is written all the same.
//! env CUPOOL_LOG=error
//! env CUPOOL_POLCIY=x
//! ooms 1
#include "victim.h"

int main(void) {
  CUdeviceptr block = 0;
  enter_device(0);
  return cuMemAlloc(&block, (size_t)1 << 50) == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 1;
}
