// A program that runs into the wall again and again: the number of reports and of messages is capped, the counter is not.
//! ooms 8
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report) .*)
//! check c["failed_allocations"] == 100 and "impossible_request" == ooms[0]["ooms"][0]["cause"]
//! check len(err.splitlines()) <= 8 * 10
#include "victim.h"

int main(void) {
  enter_device(0);
  CUdeviceptr address = 0;
  allocate(MIB);
  int refused = 0;
  for (int i = 0; i < 100; ++i) refused += cuMemAlloc(&address, 100 * GIB) == CUDA_ERROR_OUT_OF_MEMORY;
  printf("refused %d\n", refused);
  return 0;
}
