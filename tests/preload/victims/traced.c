// CUPOOL_TRACE: every event is in the file, however the process ends. A file that has the name, a full disk and children cost one
// line at most. Block i has i + 1 bytes; every third is freed at once.
//! env CUPOOL_TRACE=traces/t.%p
//! env CUPOOL_TIMELINE=0
//! case exit
//! args 20000 exit
//! check moves(f"traces/t.{pid}") == [m for i in range(20000) for m in [("a", i, i + 1)] + [("f", i)] * (i % 3 == 0)]
//! check trace(f"traces/t.{pid}").state == "closed" and trace(f"traces/t.{pid}").dropped == 0 and trace(f"traces/t.{pid}").pid == pid
//! check report["data_quality"]["dropped_events"] == 0 and (folder / f"traces/t.{pid}").stat().st_mode & 0o777 == 0o600
//! check trace(f"traces/t.{pid}").facts["process"]["command"][1] == "20000"
//! check all(1 <= e.thread and report["process"]["start_unix_ns"] <= trace(f"traces/t.{pid}").unix_ns(e.ticks) <= report["written_unix_ns"] for e in events(f"traces/t.{pid}") if e.kind == "allocate")
//! case _exit
//! args 100 _exit
//! check len(moves(f"traces/t.{pid}")) == 134 and trace(f"traces/t.{pid}").state == "closed"
//! case every_policy_platform
//! args 100 exit
//! env CUPOOL_POLICY=platform
//! check len(moves(f"traces/t.{pid}")) == 134
//! case sigkill
//! args 20000 kill
//! signal SIGKILL
//! report absent
//! page left
//! check moves(f"traces/t.{pid}") == [m for i in range(20000) for m in [("a", i, i + 1)] + [("f", i)] * (i % 3 == 0)]
//! check trace(f"traces/t.{pid}").state == "open"
//! case exec
//! args 10 exec
//! check trace(f"traces/t.{pid}").facts["process"]["command"][1] == "10" and len(moves(f"traces/t.{pid}")) == 14
//! stderr cupool\[<pid>\]: warning: no trace: .*/traces/t\.<pid>: there is such a file; with %p in CUPOOL_TRACE each process writes its own
//! check len(warnings) == 1 and c["allocations"] == 5
//! case link
//! args 100 exit
//! env CUPOOL_TRACE=t
//! setup open(scratch / "precious", "w").write("precious") and os.symlink(scratch / "precious", folder / "t")
//! stderr cupool\[<pid>\]: warning: no trace: .*/t: there is such a file; .*
//! check (folder.parent / "precious").read_text() == "precious" and (folder / "t").is_symlink() and len(warnings) == 1
//! case pipe
//! args 100 exit
//! seconds 10
//! env CUPOOL_TRACE=t
//! setup os.mkfifo(folder / "t")
//! stderr cupool\[<pid>\]: warning: no trace: .*/t: there is such a file; .*
//! check (folder / "t").is_fifo()
//! case no_folder
//! args 100 exit
//! env CUPOOL_TRACE=/proc/nowhere/t
//! stderr cupool\[<pid>\]: warning: no trace: /proc/nowhere/t: No such file or directory
//! case full
//! args 20000 small
//! stderr cupool\[<pid>\]: warning: the trace ends here: .*/traces/t\.<pid>: File too large
//! check trace(f"traces/t.{pid}").dropped > 0 and report["data_quality"]["dropped_events"] == trace(f"traces/t.{pid}").dropped
//! check moves(f"traces/t.{pid}")[:3] == [("a", 0, 1), ("f", 0), ("a", 1, 2)] and len(moves(f"traces/t.{pid}")) > 1000
//! case streams
//! args 10 streams
//! check [move.stream for move in trace_moves(f"traces/t.{pid}")][14:] == [1, 2, 1, 2, 0]
//! check len({e.stream for e in events(f"traces/t.{pid}") if e.kind == "allocate"} - {0}) == 2
//! case fork
//! args 50 fork
//! check moves(f"traces/t.{pid}") == [m for i in range(50) for m in [("a", i, i + 1)] + [("f", i)] * (i % 3 == 0)]
//! check os.listdir(folder / "traces") == [f"t.{pid}"]
//! case child_has_the_name
//! args 50 child
//! env CUPOOL_TRACE=t
//! pages_of_children
//! stderr cupool\[<pid>\]: warning: no trace: .*/t: there is such a file; .*
//! check len(moves("t")) == 67 and trace("t").pid != pid
//! case children_with_names_of_their_own
//! args 50 child
//! pages_of_children
//! check len(os.listdir(folder / "traces")) == 2 and len(moves(f"traces/t.{pid}")) == 67
//! case off
//! args 50 exit
//! env CUPOOL_POLICY=off
//! report absent
//! check "traces" not in files
//! case nothing_allocated
//! args 0 exit
//! report absent
//! check "traces" not in files
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "victim.h"

static void play(size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    CUdeviceptr address = allocate(i + 1);
    if (i % 3 == 0) MUST(cuMemFree(address));
  }
}

static void use_streams(void) {
  CUstream streams[2];
  CUdeviceptr blocks[2];
  for (int i = 0; i < 2; ++i) {
    MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    MUST(cuMemAllocAsync(&blocks[i], 1000, streams[i]));
  }
  for (int i = 0; i < 2; ++i) MUST(cuMemFreeAsync(blocks[i], streams[i]));
  allocate(1000);
}

static int in_child(const char* how) {
  CUdeviceptr address = 0;
  if (strcmp(how, "child") == 0) {  // before any use of CUDA: a process like every other
    enter_device(0);
    play(0, 50);
    return 0;
  }
  for (int i = 0; i < 100; ++i) cuMemAlloc(&address, 1000);  // the driver refuses a child of a process that used it
  return 0;
}

static void run_child(const char* how) {
  pid_t child = fork();
  if (child == 0) exit(in_child(how));
  int status = -1;
  waitpid(child, &status, 0);
  printf("child %d\n", status);
  fflush(stdout);
}

int main(int argc, char** argv) {
  const size_t blocks = (size_t)atol(argv[1]);
  const char* how = argv[2];
  if (strcmp(how, "child") == 0) run_child(how);
  enter_device(0);
  if (strcmp(how, "small") == 0) {
    const struct rlimit limit = {600 * 1000, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (size_t i = 0; i < blocks; ++i) {
      CUdeviceptr address = allocate(i + 1);
      MUST(cuMemFree(address));
    }
    setrlimit(RLIMIT_FSIZE, &none);  // the report has room
    return 0;
  }
  play(0, blocks / 2);
  if (strcmp(how, "fork") == 0) run_child(how);
  play(blocks / 2, blocks);
  if (strcmp(how, "streams") == 0) use_streams();
  if (strcmp(how, "_exit") == 0) _exit(0);
  if (strcmp(how, "kill") == 0) raise(SIGKILL);
  if (strcmp(how, "exec") == 0) execl("/proc/self/exe", argv[0], "5", "exit", NULL);
  return argc != 3;
}
