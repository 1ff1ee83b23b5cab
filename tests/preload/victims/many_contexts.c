// Many created contexts come and go, each with memory: pools die with them, nothing of the device is lost.
//! check c["allocations"] == 60 and c["live_blocks"]["current"] == 0 and sim["devices"][0]["used_bytes"] == 0
#include "victim.h"

int main(void) {
  MUST(cuInit(0));
  for (int i = 0; i < 20; ++i) {
    CUcontext context;
    size_t free_bytes = 0, total_bytes = 0;
    MUST(create_context(&context, 0, 0));
    allocate(GIB);
    MUST(cuMemFree(allocate(2 * GIB)));
    allocate(3 * MIB);
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    MUST(cuCtxDestroy(context));
  }
  return 0;
}
