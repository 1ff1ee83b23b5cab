// Daemons: double fork, setsid, chdir("/"), every descriptor closed, before and after the first use of CUDA. Where the numbers of our
// descriptors are taken by files of the daemon's own, nothing of ours is ever written into these.
//! pages_of_children
//! report elsewhere
//! check [r["process"]["exit"]["code"] for r in reports.values() if r["event"] == "exit"] == [6]
//! check all(r["devices"][0]["counters"]["allocations"] == 64 for r in reports.values() if r["event"] == "exit")
//! check (folder / "data").read_text() == "data" * 40
//! env VICTIM_LEFT=0
//! setup env["VICTIM_FOLDER"] = str(folder)
//! case closes_before_use
//! args before
//! setup env["CUPOOL_REPORT"] = str(folder / "report.json")
//! check sorted(files) == ["data", "report.json"]
//! case closes_after_use
//! args after
//! setup env["CUPOOL_REPORT"] = str(folder / "report.json")
//! env CUPOOL_LIMIT=64MiB
//! setup env["CUPOOL_LOG_FILE"] = str(folder / "log")
//! setup env["CUPOOL_TRACE"] = str(folder / "trace")
//! ooms any
//! check sorted(files) == ["data", "log", "report.json", "report.oom1.json", "trace"]
//! check "out of memory" in (folder / "log").read_text() and trace("trace").state == "closed" and len(moves("trace")) == 64
//! case relative_names
//! args after
//! env CUPOOL_REPORT=report.json
//! env CUPOOL_LOG_FILE=log
//! env CUPOOL_LIMIT=64MiB
//! ooms any
//! check sorted(files) == ["data", "log", "report.json", "report.oom1.json"] and "out of memory" in (folder / "log").read_text()
//! case log_on_a_closed_stderr
//! args after
//! env CUPOOL_REPORT=report.json
//! env CUPOOL_POLCIY=x
//! env VICTIM_LEFT=3
//! stderr .*CUPOOL_POLCIY.*
//! check sorted(files) == ["data", "report.json"]
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "victim.h"

/* Descriptors 0 to 39, all the daemon's; ours were among them, or would have been. */
static void take_numbers(void) {
  const int first = atoi(getenv("VICTIM_LEFT"));
  MUST(close_range((unsigned)first, ~0U, 0));
  char path[4096];
  snprintf(path, sizeof path, "%s/data", getenv("VICTIM_FOLDER"));
  for (int i = first; i < 40 + first; ++i) {
    if (open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) != i) _exit(90);
  }
}

static void use(int blocks) {
  for (int i = 0; i < blocks; ++i) allocate(100 * KIB);
}

static void be_daemon(int uses_before) {
  if (uses_before) {
    enter_device(0);
    use(32);
  }
  if (chdir("/") != 0) _exit(91);
  take_numbers();
  if (!uses_before) {
    enter_device(0);
    use(32);
  }
  use(32);
  CUdeviceptr too_much;
  if (getenv("CUPOOL_LIMIT") != NULL && cuMemAlloc(&too_much, GIB) != CUDA_ERROR_OUT_OF_MEMORY) _exit(92);
  const int first = atoi(getenv("VICTIM_LEFT"));
  for (int i = first; i < 40 + first; ++i) {
    if (write(i, "data", 4) != 4) _exit(93);
  }
  exit(6);
}

int main(int argc, char** argv) {
  const int uses_before = argc > 1 && strcmp(argv[1], "after") == 0;
  fflush(stdout);
  prctl(PR_SET_CHILD_SUBREAPER, 1); /* so that this process can wait for the daemon */
  if (fork() == 0) {
    if (setsid() < 0) _exit(94);
    if (fork() == 0) be_daemon(uses_before);
    _exit(0);
  }
  int status = 0, sum = 0;
  while (wait(&status) > 0) sum += WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
  printf("ends: %d\n", sum);
  return sum == 6 ? 0 : 1;
}
