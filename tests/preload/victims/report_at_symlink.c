// A symbolic link, or a second name of a file, where the report should go: what it names is never written through; the name becomes the report.
//! env CUPOOL_REPORT=link.json
//! report elsewhere
//! case second_name
//! setup open(scratch / "precious", "w").write("precious") and os.link(scratch / "precious", folder / "link.json")
//! check (folder.parent / "precious").read_text() == "precious" and report is not None
//! case symbolic_link
//! setup open(scratch / "precious", "w").write("precious") and os.symlink(scratch / "precious", folder / "link.json")
//! check (folder.parent / "precious").read_text() == "precious"
//! check not (folder / "link.json").is_symlink() and report is not None
//! case folder_by_a_link_of_another_user
//! needs root()
//! env CUPOOL_REPORT=theirs/report.json
//! env CUPOOL_LOG_FILE=theirs/log
//! env CUPOOL_TRACE=theirs/trace
//! setup (scratch / "precious").mkdir() or os.symlink(scratch / "precious", folder / "theirs")
//! setup os.chown(folder / "theirs", 65000, 65000, follow_symlinks=False)
//! stderr cupool\[<pid>\]: warning: cannot open CUPOOL_LOG_FILE .*/theirs/log: a symbolic link there is not followed; .*
//! stderr cupool\[<pid>\]: warning: no trace: .*/theirs/trace: a symbolic link there is not followed; .*
//! stderr cupool\[<pid>\]: warning: no report: .*/theirs/report.json: a symbolic link there is not followed; .*
//! check os.listdir(folder.parent / "precious") == []
//! case folder_by_a_link_of_its_own
//! env CUPOOL_REPORT=ours/report.json
//! env CUPOOL_LOG_FILE=ours/log
//! env CUPOOL_TRACE=ours/trace
//! setup (scratch / "elsewhere").mkdir() or os.symlink(scratch / "elsewhere", folder / "ours")
//! check sorted(os.listdir(folder.parent / "elsewhere")) == ["log", "report.json", "trace"]
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 0;
}
