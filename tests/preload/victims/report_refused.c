// A report that cannot be written: one warning line, the exit code is the program's, nothing half written stays.
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
//! case full_disk
//! env CUPOOL_REPORT=/dev/full
//! stderr cupool\[<pid>\]: warning: no report: .*
//! check files == []
//! case is_a_folder
//! env CUPOOL_REPORT=there
//! setup (folder / "there").mkdir()
//! stderr cupool\[<pid>\]: warning: no report: .*
//! check files == ["there"]
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 3;
}
