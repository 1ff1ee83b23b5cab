// off: the library is inert. The driver sees exactly the calls that it sees without us; no report, no page, no word.
//! report absent
//! check sim["calls"] == native.sim["calls"] and files == []
//! case off
//! env CUPOOL_POLICY=off
//! case off_in_capitals
//! env CUPOOL_POLICY=OFF
//! case off_with_a_blank
//! setup env["CUPOOL_POLICY"] = " off\t"
//! case off_with_garbage_elsewhere
//! env CUPOOL_POLICY=off
//! env CUPOOL_LIMIT=banana
//! env CUPOOL_NO_SUCH=1
#include "victim.h"

int main(void) {
  CUcontext context = enter_device(0);
  size_t free_bytes, total_bytes;
  CUdeviceptr block = allocate(MIB);
  MUST(cuMemGetInfo(&free_bytes, &total_bytes));
  printf("free %zu\n", free_bytes);
  MUST(cuMemFree(block));
  MUST(cuCtxSetCurrent(context));
  return 0;
}
