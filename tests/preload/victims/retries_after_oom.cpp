// A framework's way: out of memory, free what it can, try again, go on. The last error is as cudart keeps it.
//! ooms 2
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report) .*)
//! check [o["final_of_series"] for o in ooms] == [False, True] and c["failed_allocations"] == 2
//! check len(report["ooms"]) == 2
//! check [o["allocations_before"] for o in report["ooms"]] == [1, 3] and [o["served_since"] for o in report["ooms"]] == [True, True]
//! check c["allocations"] == 5 and [o["ooms"][-1]["served_since"] for o in ooms] == [False, False] and ooms[1]["ooms"][0]["served_since"] is True
#include <cuda_runtime_api.h>

#include "victim.h"

int main() {
  void* held = nullptr;
  void* more = nullptr;
  MUST(cudaMalloc(&held, 5 * GIB));
  for (int i = 0; i < 2; ++i) {
    SAY(cudaMalloc(&more, 4 * GIB));
    SAY(cudaPeekAtLastError());
    SAY(cudaGetLastError());
    SAY(cudaGetLastError());
    MUST(cudaFree(held));
    SAY(cudaMalloc(&held, 4 * GIB));
    MUST(cudaFree(held));
    MUST(cudaMalloc(&held, 5 * GIB));
  }
  return 0;
}
