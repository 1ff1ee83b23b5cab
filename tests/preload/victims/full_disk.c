// A report folder on a disk that is full: one warning line, the program's own exit code, nothing half written. The disk is a small tmpfs in a
// mount namespace of the program's own; where that is not allowed, a limit on the size of files stands in for it, and stdout says so.
//! exit 3
//! report absent
//! native skip
//! env CUPOOL_REPORT=disk/report.json
//! setup (folder / "disk").mkdir()
//! stderr cupool\[<pid>\]: warning: no report: .*
//! check files == ["disk"] and list((folder / "disk").iterdir()) == [] and "left behind: 0" in out
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "victim.h"

static int fill_tmpfs(void) {
  if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return -1;
  if (mount("none", "disk", "tmpfs", 0, "size=64k") != 0) return -1;
  char block[4096];
  memset(block, 'x', sizeof block);
  int filler = open("disk/filler", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  while (filler >= 0 && write(filler, block, sizeof block) > 0) {}
  if (filler >= 0) close(filler);
  return 0;
}

/* Runs after everything that the library does at exit, in a destructor of the program's first object: too early to see it. So a child looks. */
static void look_afterwards(void) {
  int ends[2];
  MUST(pipe(ends));
  pid_t child = fork();
  if (child != 0) {
    close(ends[0]);
    fcntl(ends[1], F_SETFD, 0);
    return; /* the write end closes with the process */
  }
  close(ends[1]);
  char byte;
  while (read(ends[0], &byte, 1) > 0) {}
  int left = 0;
  DIR* folder = opendir("disk");
  for (struct dirent* entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
    left += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
    left -= strcmp(entry->d_name, "filler") == 0;
  }
  printf("left behind: %d\n", left);
  fflush(stdout);
  _exit(0);
}

int main(void) {
  if (fill_tmpfs() != 0) {
    printf("no mount namespace: a file size limit instead\n");
    fflush(stdout);
    struct rlimit most = {100, 100};
    MUST(setrlimit(RLIMIT_FSIZE, &most));
  }
  look_afterwards();
  enter_device(0);
  allocate(MIB);
  return 3;
}
