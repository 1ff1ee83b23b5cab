// posix_spawn with file actions and attributes, vfork and exec, system(), popen() and fexecve from a process that holds memory: the programs they
// start see nothing of it, a CUDA program among them is served and reports for itself.
//! pages_of_children
//! check sorted(r["process"]["exit"]["code"] for r in reports.values()) == [0, 3, 3, 3] and c["allocations"] == 1
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include "victim.h"

extern char** environ;

static void print_end(const char* what, int status) {
  printf("%s: %x\n", what, status);
  fflush(stdout);
}

static void wait_for(const char* what, pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  print_end(what, status);
}

static void spawn(char* const arguments[]) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none;
  pid_t child;
  sigemptyset(&none);
  MUST(posix_spawn_file_actions_init(&actions));
  MUST(posix_spawn_file_actions_addclose(&actions, 0));
  MUST(posix_spawnattr_init(&attributes));
  MUST(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP));
  MUST(posix_spawnattr_setsigmask(&attributes, &none));
  MUST(posix_spawn(&child, "/proc/self/exe", &actions, &attributes, arguments, environ));
  wait_for("posix_spawn", child);
}

int main(int argc, char** argv) {
  char word[64] = "";
  enter_device(0);
  allocate(MIB);
  if (argc > 1) exit(3);
  char* const arguments[] = {argv[0], (char*)"child", NULL};
  print_end("system", system("exit 5"));
  FILE* pipe = popen("echo popen", "r");
  printf("%s", fgets(word, sizeof word, pipe));
  print_end("pclose", pclose(pipe));
  spawn(arguments);
  const int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  pid_t child = fork();
  if (child == 0) fexecve(self, arguments, environ);
  wait_for("fork and fexecve", child);
  child = vfork();
  if (child == 0) {
    fexecve(self, arguments, environ);
    _exit(97);
  }
  wait_for("vfork and fexecve", child);
  return 0;
}
