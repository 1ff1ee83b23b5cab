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
//! case name_of_another_user
//! uid 64002
//! native skip
//! env CUPOOL_REPORT=kept-folder/kept-report
//! setup (folder / "kept-folder").mkdir() or os.chmod(folder / "kept-folder", 0o1777) or open(folder / "kept-folder" / "kept-report", "w").close()
//! stderr cupool\[<pid>\]: warning: no report: .*/kept-report: Operation not permitted
//! check [p.name for p in (folder / "kept-folder").iterdir()] == ["kept-report"] and (folder / "kept-folder" / "kept-report").read_text() == ""
//! case control_characters
//! report present
//! setup env["CUPOOL_REPORT"] = "/proc/\n\x1b]0;title\x07cupool[1]: forged.json"
//! stderr cupool\[<pid>\]: warning: CUPOOL_REPORT=/proc/\\n\\x1b\]0;title\\x07cupool\[1\]: forged.json: a control character in a file name; .*
//! case forged_line
//! env CUPOOL_REPORT=/proc/%q{JOB}.json
//! setup env["JOB"] = "\n\x1b]0;title\x07\u009b2Jcupool[1]: forged"
//! stderr cupool\[<pid>\]: warning: no report: /proc/[^\x00-\x1f\x7f-\x9f]*cupool\[1\]: forged.json: No such file or directory
//! check files == []
//! case name_too_long
//! setup env["CUPOOL_REPORT"] = "n" * 100000 + ".json"
//! stderr* cupool\[<pid>\]: warning: .{1,9000}
//! check files == []
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
