// Threads on two devices run out of memory at the same moment: each failure is told once, with its own device, and has a report of its own.
//! ooms 6
//! stderr* (cupool\[<pid>\]: out of memory on GPU [01].*|  (cause|holds|elsewhere|try|report) .*)
//! check len(ooms) == 6 and len(report["ooms"]) == 6 and sum(x["counters"]["failed_allocations"] for x in report["devices"]) == 6
//! check [len(x["ooms"]) for x in sorted(ooms, key=lambda x: len(x["ooms"]))] == [1, 2, 3, 4, 5, 6]
//! check sorted(x["ooms"][-1]["requested_bytes"] % GiB // MiB for x in ooms) == [0, 1, 2, 3, 4, 5]
//! check all(x["ooms"][-1]["device"] == x["ooms"][-1]["requested_bytes"] // MiB % 2 for x in ooms)
//! check all(len(re.findall(r"^cupool\[\d+\]: out of memory on GPU %d" % d, err, re.M)) == 3 for d in (0, 1))
//! check len(set(re.findall(r"oom\d\.json", err))) == 6
//! check [x["final_of_series"] for x in sorted(ooms, key=lambda x: len(x["ooms"]))] == [False] * 5 + [True]
//! env CUSIM_DEVICES=2
//! env CUSIM_MEMORY=4GiB
//! case pages
//! env CUPOOL_BACKING=pages
//! case segments
//! env CUPOOL_BACKING=segments
#include <atomic>
#include <thread>
#include <vector>

#include "victim.h"

namespace {

constexpr int kThreads = 6;
std::atomic<int> there{0};

void fail(int number) {
  enter_device(number % 2);
  ++there;
  while (there < kThreads) std::this_thread::yield();
  CUdeviceptr block = 0;
  if (cuMemAlloc(&block, 2 * GIB + static_cast<std::size_t>(number) * MIB) != CUDA_ERROR_OUT_OF_MEMORY) std::exit(98);
}

}  // namespace

int main() {
  for (int device : {0, 1}) {
    enter_device(device);
    allocate(3 * GIB);
    for (int i = 0; i < 2500; ++i) allocate(2000);  // a report takes as long as it takes to list them
  }
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) threads.emplace_back(fail, number);
  for (std::thread& thread : threads) thread.join();
  return 0;
}
