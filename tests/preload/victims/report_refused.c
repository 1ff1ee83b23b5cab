// A report that cannot be written: one warning line, the exit code is the program's, nothing half written stays, and what stands
// under the name and is no file (a pipe, a device) is not replaced.
//! exit 3
//! report absent
//! case missing_parent_is_file
//! env CUPOOL_REPORT=file/report.json
//! setup open(folder / "file", "w").write("x")
//! stderr cupool\[<pid>\]: warning: no report: .*
//! check files == ["file"]
//! case proc
//! env CUPOOL_REPORT=/proc/report.json
//! stderr cupool\[<pid>\]: warning: no report: .*
//! check files == []
//! case file_size_limit
//! args 2000
//! env CUPOOL_REPORT=report.json
//! stderr cupool\[<pid>\]: warning: no report: .*
//! check files == []
//! case no_file_at_all
//! args 0
//! env CUSIM_LOG=
//! env CUPOOL_REPORT=report.json
//! stderr cupool\[<pid>\]: warning: no report: .*
//! check files == []
//! case not_a_regular_file
//! env CUPOOL_REPORT=pipe
//! setup os.mkfifo(folder / "pipe")
//! stderr cupool\[<pid>\]: warning: no report: .*
//! check files == ["pipe"] and (folder / "pipe").is_fifo()
//! case is_a_folder
//! env CUPOOL_REPORT=there
//! setup (folder / "there").mkdir()
//! stderr cupool\[<pid>\]: warning: no report: .*
//! check files == ["there"]
#include <sys/resource.h>

#include "victim.h"

int main(int argc, char** argv) {
  if (argc > 1) {
    struct rlimit most = {(rlim_t)atoi(argv[1]), (rlim_t)atoi(argv[1])};
    MUST(setrlimit(RLIMIT_FSIZE, &most));
  }
  enter_device(0);
  allocate(MIB);
  return 3;
}
