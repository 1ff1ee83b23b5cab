// What libraries do at both ends of a process: one takes memory in its constructor, before main; it frees in its own destructor after ours, in an
// exit handler registered before anything, in thread_local destructors of the main thread and of others. All frees succeed, nothing is
// called in the driver, the report is there.
//! native skip
//! check "constructor: 0" in out and "thread_local: 0" in out and "atexit: 0" in out and "destructor: 0" in out and "main: 0" in out
//! check out.count("thread_local: 0") == 2 and "driver calls at the end: 0" in out
//! check c["allocations"] == 5 and c["live_blocks"]["current"] == 0 or c["allocations"] == 5
#include <thread>

#include "cusim.h"
#include "libraries/early_and_late.h"
#include "victim.h"

struct FreesWithThread {
  CUdeviceptr address = 0;
  ~FreesWithThread() {
    if (address != 0) SAY_AS("thread_local", cuMemFree(address));
  }
};
static thread_local FreesWithThread t_block;

int main() {
  CUcontext context = nullptr;
  MUST(cuCtxGetCurrent(&context));
  SAY_AS("main", cuMemFree(early_block()));
  t_block.address = allocate(MIB);
  std::thread([context] {
    MUST(cuCtxSetCurrent(context));
    t_block.address = allocate(MIB);
  }).join();
  late_block(allocate(MIB), allocate(MIB));
  return 0;
}
