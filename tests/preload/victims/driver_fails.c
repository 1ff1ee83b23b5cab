// The driver itself fails in the middle of things: its own error reaches the program, or the pool copes; never another code.
//! native skip
//! case refuses_once
//! env CUSIM_FAIL=cuMemAlloc_v2:1:2:1
//! check out == "first: 0\nsecond: 0\n" and c["failed_allocations"] == 0
//! case unknown_error
//! env CUPOOL_BACKING=segments
//! env CUSIM_FAIL=cuMemAlloc_v2:1:999:1000
//! check out == "first: 999\nsecond: 999\n"
#include "victim.h"

int main(void) {
  enter_device(0);
  CUdeviceptr address = 0;
  say_code("first", cuMemAlloc(&address, MIB));
  say_code("second", cuMemAlloc(&address, MIB));
  return 0;
}
