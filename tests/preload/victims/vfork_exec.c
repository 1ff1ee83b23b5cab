// vfork and _exit, vfork and exec, posix_spawn, from a process that holds memory: the parent is not disturbed, its report
// is its own, and a spawned CUDA program is served like any other.
//! pages_of_children
//! check len(reports) == 3 and c["allocations"] == 2
//! check sorted(r["process"]["exit"]["code"] for r in reports.values()) == [0, 11, 11]
#include <spawn.h>
#include <sys/wait.h>

#include "victim.h"

extern char** environ;

static void print_child(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  printf("child %d\n", WEXITSTATUS(status));
  fflush(stdout);
}

int main(int argc, char** argv) {
  enter_device(0);
  allocate(MIB);
  if (argc > 1) exit(11);
  char* child_argv[] = {argv[0], (char*)"child", NULL};
  pid_t child = vfork();
  if (child == 0) _exit(9);
  print_child(child);
  child = vfork();
  if (child == 0) {
    execv("/proc/self/exe", child_argv);
    _exit(97);
  }
  print_child(child);
  MUST(posix_spawn(&child, "/proc/self/exe", NULL, NULL, child_argv, environ));
  print_child(child);
  allocate(MIB);
  return 0;
}
