// exec replaces a process that holds memory: the new program, same pid, starts afresh and reports for itself only.
//! exit 2
//! check len(reports) == 1 and c["allocations"] == 1 and c["live_bytes"]["peak"] == 1024
#include "victim.h"

int main(int argc, char** argv) {
  enter_device(0);
  if (argc > 1) {
    allocate(1000);
    return 2;
  }
  allocate(MIB);
  allocate(MIB);
  execl("/proc/self/exe", argv[0], "again", NULL);
  return 97;
}
