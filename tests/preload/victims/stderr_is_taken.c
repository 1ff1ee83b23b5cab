// Descriptor 2 is not the program's standard error any more, or never was: cupool's lines do not go into a file of the program's. They do where something was put
// there to be printed to: freopen, or what is appended to.
//! ooms 1
//! stderr* .*
//! case closed_at_load
//! args closed_at_load
//! check (folder / "data").read_text() == "DATAMORE"
//! case closed_at_load_report
//! args closed_at_load_report
//! env CUPOOL_REPORT=stderr
//! report elsewhere
//! ooms 0
//! check (folder / "data").read_text() == "DATAMORE"
//! case closed
//! args closed
//! check (folder / "data").read_text() == "DATAMORE"
//! case reopened
//! args reopened
//! check "out of memory on GPU 0" in (folder / "data").read_text()
//! case appended
//! args appended
//! check "out of memory on GPU 0" in (folder / "data").read_text()
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "victim.h"

static int use(int file) {
  if (file != STDERR_FILENO || write(file, "DATA", 4) != 4) return 2;
  enter_device(0);
  allocate(MIB);
  CUdeviceptr block = 0;
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  if (cuMemAlloc(&block, (size_t)1 << 50) != CUDA_ERROR_OUT_OF_MEMORY) return 3;
  clock_gettime(CLOCK_MONOTONIC, &after);
  if (after.tv_sec - before.tv_sec >= 2) return 6;  // nobody is waited for
  return write(file, "MORE", 4) == 4 ? 0 : 4;
}

int main(int count, char** words) {
  const char* name = count > 1 ? words[1] : "";
  close(STDERR_FILENO);
  if (strncmp(name, "closed_at_load", 14) == 0) {
    char* again[] = {words[0], "again", NULL};
    execv("/proc/self/exe", again);
    return 5;
  }
  if (strcmp(name, "reopened") == 0) return use(open("data", O_WRONLY | O_CREAT | O_TRUNC, 0600));
  if (strcmp(name, "appended") == 0) return use(open("data", O_RDWR | O_APPEND | O_CREAT, 0600));
  return use(open("data", (strcmp(name, "again") == 0 ? O_WRONLY : O_RDWR) | O_CREAT | O_TRUNC, 0600));
}
