// The device is full: the error is the driver's, the cause stands on stderr in at most ten lines and in a report of its own.
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0.*cuMemAlloc_v2.*
//! stderr \s+cause +true_exhaustion: short by .*
//! stderr* \s+(holds|elsewhere|try|report) .*
//! native skip
//! check len(err.splitlines()) <= 10 and c["failed_allocations"] == 1
//! check ooms[0]["ooms"][0]["cause"] == "true_exhaustion" and ooms[0]["ooms"][0]["requested_bytes"] == 4 * GiB
//! check ooms[0]["ooms"][0]["api"] == "cuMemAlloc_v2" and ooms[0]["ooms"][0]["result"] == 2 and ooms[0]["final_of_series"] is True
//! check len(report["ooms"]) == 1 and re.search(r"oom1", err)
#include "victim.h"

int main(void) {
  enter_device(0);
  CUdeviceptr address = 0;
  allocate(5 * GIB);
  SAY(cuMemAlloc(&address, 4 * GIB));
  SAY(cuMemAlloc(&address, 1 * GIB));
  return 0;
}
