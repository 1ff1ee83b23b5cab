// CUPOOL_REPORT=stderr, and standard error is a pipe that does not block its writer and that somebody reads, once it is full: the whole report goes through. Where nobody ever reads
// it is given up, and neither the refusal nor the exit waits for long.
//! env CUPOOL_REPORT=stderr
//! report elsewhere
//! native same
//! stderr* .*
//! seconds 30
//! case read
//! args read
//! check json.loads((folder / "read").read_text())["event"] == "exit"
//! case unread
//! args unread
//! check out == "refused 2\n"
//! case unread_blocking
//! args unread_blocking
//! check out == "refused 2\n"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

/// Begins when the pipe is full, or nobody writes to it any more.
static void read_all(int from, pid_t writer) {
  static char piece[4096];
  const int whole = fcntl(from, F_GETPIPE_SZ);
  const int into = open("read", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  for (int waiting = 0; waiting < whole && getppid() == writer; sched_yield())
    if (ioctl(from, FIONREAD, &waiting) != 0) _exit(2);
  for (ssize_t got = 0; (got = read(from, piece, sizeof piece)) > 0;)
    if (write(into, piece, (size_t)got) != got) _exit(3);
  _exit(0);
}

static void fill(int pipe_end) {
  char page[4096] = {0};
  while (write(pipe_end, page, sizeof page) > 0) {}
}

int main(int count, char** words) {
  const char* name = count > 1 ? words[1] : "";
  int ends[2];
  if (pipe(ends) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) return 2;
  const int is_read = strcmp(name, "read") == 0;
  const pid_t self = getpid();
  if (is_read && fork() == 0) {
    close(ends[1]);
    read_all(ends[0], self);
  }
  if (!is_read) fill(ends[1]);
  if (strcmp(name, "unread_blocking") == 0) fcntl(ends[1], F_SETFL, 0);
  if (is_read) close(ends[0]);
  if (dup2(ends[1], STDERR_FILENO) < 0) return 2;
  close(ends[1]);
  enter_device(0);
  if (is_read) {
    for (int i = 0; i < 5000; ++i) allocate(4096);
    return 0;
  }
  CUdeviceptr block = 0;
  printf("refused %d\n", cuMemAlloc(&block, (size_t)1 << 50));
  return 0;
}
