// CUPOOL_LOG_FILE: warnings go there, not to stderr; patterns are expanded. A link, a file with a second name, another user's file or a pipe
// that nobody reads is refused with a line on stderr, and left as it is. What a full disk does not take goes to stderr.
//! env CUPOOL_POLCIY=x
//! case file
//! env CUPOOL_LOG_FILE=log.%p.txt
//! check "CUPOOL_POLCIY" in (folder / f"log.{pid}.txt").read_text()
//! check report["options"]["log_file"] == {"value": "log.%p.txt", "source": "env"}
//! case unwritable
//! env CUPOOL_LOG_FILE=/proc/nowhere/log.txt
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_LOG_FILE.*
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*
//! check report["options"]["log_file"] == {"value": "stderr", "source": "default"}
//! check any("CUPOOL_LOG_FILE" in line for line in warnings)
//! case folders
//! env CUPOOL_LOG_FILE=new/deep/log
//! check "CUPOOL_POLCIY" in (folder / "new/deep/log").read_text()
//! case appends
//! env CUPOOL_LOG_FILE=log
//! setup open(folder / "log", "w").write("before\n")
//! check (folder / "log").read_text().startswith("before\ncupool[")
//! case link
//! env CUPOOL_LOG_FILE=log
//! setup open(scratch / "precious", "w").write("precious") and os.symlink(scratch / "precious", folder / "log")
//! stderr cupool\[<pid>\]: warning: cannot open CUPOOL_LOG_FILE .*/log: a symbolic link there is not followed; name what it leads to
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*
//! check (folder.parent / "precious").read_text() == "precious"
//! case second_name
//! env CUPOOL_LOG_FILE=log
//! setup open(scratch / "precious", "w").write("precious") and os.link(scratch / "precious", folder / "log")
//! stderr cupool\[<pid>\]: warning: cannot open CUPOOL_LOG_FILE .*/log: the file has another name too
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*
//! check (folder.parent / "precious").read_text() == "precious"
//! case pipe_without_reader
//! env CUPOOL_LOG_FILE=log
//! seconds 10
//! setup os.mkfifo(folder / "log")
//! stderr cupool\[<pid>\]: warning: cannot open CUPOOL_LOG_FILE .*/log: No such device or address
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*
//! case pipe_that_is_not_emptied
//! env CUPOOL_LOG_FILE=log
//! seconds 10
//! setup os.mkfifo(folder / "log") or os.open(folder / "log", os.O_RDWR | os.O_NONBLOCK)
//! check files[0].startswith("cupool-report")
//! case full
//! env CUPOOL_LOG_FILE=/dev/full
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*
//! case full_in_a_line
//! args 30
//! env CUPOOL_LOG_FILE=log
//! stderr cupool\[<pid>\]: warning: CUPOOL_POLCIY: .*
//! check len((folder / "log").read_text()) == 30
//! case folder
//! env CUPOOL_LOG_FILE=log
//! setup (folder / "log").mkdir()
//! stderr cupool\[<pid>\]: warning: cannot open CUPOOL_LOG_FILE .*/log: Is a directory
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*
//! case device_of_another_user
//! uid 64001
//! env CUPOOL_LOG_FILE=/dev/null
//! case of_another_user
//! uid 64001
//! env CUPOOL_LOG_FILE=kept-log
//! setup open(folder / "kept-log", "w").write("of root\n") and os.chmod(folder / "kept-log", 0o666)
//! stderr cupool\[<pid>\]: warning: cannot open CUPOOL_LOG_FILE .*/kept-log: the file belongs to another user
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*
//! check (folder / "kept-log").read_text() == "of root\n"
//! case forged_line
//! env CUPOOL_LOG_FILE=/proc/nowhere/%q{JOB}
//! setup env["JOB"] = "\ncupool[1]: error: forged \x1b[2J\u009b2J\udc9b"
//! stderr cupool\[<pid>\]: warning: cannot open CUPOOL_LOG_FILE /proc/nowhere/[^\x00-\x1f\x7f-\x9f]*: No such file or directory
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*
//! case silent
//! env CUPOOL_LOG=off
//! check len(warnings) == 1
#include <sys/resource.h>

#include "victim.h"

/* With an argument: the most bytes that a file may have while the library goes live. */
int main(int count, char** arguments) {
  struct rlimit most = {count > 1 ? (rlim_t)atoi(arguments[1]) : RLIM_INFINITY, RLIM_INFINITY};
  MUST(setrlimit(RLIMIT_FSIZE, &most));
  enter_device(0);
  allocate(MIB);
  most.rlim_cur = RLIM_INFINITY;
  MUST(setrlimit(RLIMIT_FSIZE, &most));
  return 0;
}
