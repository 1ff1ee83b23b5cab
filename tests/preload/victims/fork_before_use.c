// A fork of a process that has not used CUDA: the child gets full service and writes its own report; so does the parent after it.
//! pages_of_children
//! check len(reports) == 2 and all(r["devices"][0]["counters"]["allocations"] == (1 if r["process"]["pid"] == pid else 2) for r in reports.values())
//! check os.environ is not None and [r["process"]["exit"]["code"] for r in reports.values() if r["process"]["pid"] != pid] == [4]
#include <sys/wait.h>

#include "victim.h"

int main(void) {
  pid_t child = fork();
  if (child == 0) {
    enter_device(0);
    allocate(MIB);
    allocate(MIB);
    exit(4);
  }
  int status = 0;
  waitpid(child, &status, 0);
  enter_device(0);
  allocate(MIB);
  printf("child %d\n", WEXITSTATUS(status));
  return 0;
}
