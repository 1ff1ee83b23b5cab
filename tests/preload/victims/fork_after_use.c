// The child of a process that has used CUDA: the driver refuses it there, and so do we, whatever the child tries and
// however it ends. Only the parent reports; its counters know nothing of the child's tries.
//! check len(reports) == 1 and c["allocations"] == 2 and c["frees"] == 1
//! case exit
//! args exit
//! case _exit
//! args _exit
//! case abort
//! args abort
#include <sys/wait.h>

#include "victim.h"

static void in_child(CUdeviceptr inherited, const char* how) {
  CUdeviceptr address = 0;
  size_t free_bytes = 0, total_bytes = 0;
  SAY(cuMemFree(inherited));
  SAY(cuMemAlloc(&address, MIB));
  SAY(cuMemGetInfo(&free_bytes, &total_bytes));
  SAY(cuMemFree(0x1234));
  SAY(cuInit(0));
  SAY(cuMemAlloc(&address, MIB));
  fflush(stdout);
  if (strcmp(how, "_exit") == 0) _exit(6);
  if (strcmp(how, "abort") == 0) abort();
  exit(6);
}

int main(int argc, char** argv) {
  enter_device(0);
  CUdeviceptr inherited = allocate(MIB);
  pid_t child = fork();
  if (child == 0) in_child(inherited, argc > 1 ? argv[1] : "exit");
  int status = 0;
  waitpid(child, &status, 0);
  printf("child %x\n", status);
  SAY(cuMemFree(inherited));
  allocate(MIB);
  return 0;
}
