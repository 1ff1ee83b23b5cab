// Arguments that the driver refuses, and what it does with the outputs then: exactly its own answers.
//! ooms 4
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report) .*)
//! native same
//! check [o["ooms"][-1]["cause"] for o in ooms] == ["impossible_request"] * 4
//! check c["handles_released"] + c["regions_released"] == 0
#include "victim.h"

static void allocate_and_print(size_t bytes) {
  CUdeviceptr address = 0xdead;
  size_t pitch = 77;
  say_code("cuMemAlloc", cuMemAlloc(&address, bytes));
  printf("  untouched %d\n", address == 0xdead);
  (void)pitch;
}

int main(void) {
  enter_device(0);
  size_t free_bytes = 5, total_bytes = 0;
  MUST(cuMemGetInfo(&free_bytes, &total_bytes));
  const CUdeviceptr kept = allocate(64 * MIB);  // idle from here on: an impossible request must not cost it
  MUST(cuMemFree(kept));
  MUST(cuCtxSynchronize());
  SAY(cuMemAlloc(NULL, MIB));
  SAY(cuMemAlloc(NULL, 0));
  allocate_and_print(0);
  allocate_and_print(SIZE_MAX);
  allocate_and_print(SIZE_MAX - 511);
  allocate_and_print(SIZE_MAX - MIB);
  allocate_and_print(total_bytes + 1);
  allocate(512);
  return 0;
}
