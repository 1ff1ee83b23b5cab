// platform: every call is a native one, at once, still counted and reported.
//! env CUPOOL_POLICY=platform
//! check calls("cuMemAlloc_v2") == native.calls("cuMemAlloc_v2") == 10 and calls("cuMemFree_v2") == native.calls("cuMemFree_v2") == 9
//! check c["allocations"] == 10 and c["frees"] == 9 and c["live_bytes"]["current"] == 10 * MiB
//! check d["policy"] == "platform" and sim["devices"][0]["used_bytes"] == native.sim["devices"][0]["used_bytes"]
#include "victim.h"

int main(void) {
  enter_device(0);
  for (int i = 1; i <= 10; ++i) {
    CUdeviceptr address = allocate((size_t)i * MIB);
    if (i < 10) MUST(cuMemFree(address));
  }
  return 0;
}
