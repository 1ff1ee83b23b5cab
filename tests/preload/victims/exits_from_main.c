// The plainest program: its exit code is its own, its memory came from a pool, its report is there.
//! exit 3
//! check c["allocations"] == 2 and c["frees"] == 1 and c["failed_allocations"] == 0
//! check c["live_bytes"]["current"] == 4 * MiB and c["live_bytes"]["peak"] == 4 * MiB + 1024
//! check c["requested_bytes"] == {"current": 4 * MiB, "peak": 4 * MiB + 1000}
//! check report["process"]["exit"]["code"] == 3
//! check report["leaks"] and report["leaks"][0]["bytes"] == 4 * MiB
//! check sum(d["ledger"].values()) == d["total_bytes"]
//! check not re.search("cupool", out)
#include "victim.h"

int main(void) {
  enter_device(0);
  CUdeviceptr small = allocate(1000);
  CUdeviceptr large = allocate(4 * MIB);
  MUST(cuMemsetD8(large, 7, 4 * MIB));
  MUST(cuMemFree(small));
  return 3;
}
