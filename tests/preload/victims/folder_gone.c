// The program removes the folder that it ran in, as one does that made it by mktemp: the report that has no folder of its own does not bring it back; a line says so.
//! native skip
//! report absent
//! stderr cupool\[<pid>\]: warning: no report: .*/job/cupool-report\..*\.json: No such file or directory
//! check not (folder / "job").exists()
#include <sys/stat.h>
#include <unistd.h>

#include "victim.h"

int main(void) {
  if (mkdir("job", 0700) != 0 || chdir("job") != 0) return 2;
  enter_device(0);
  allocate(MIB);
  if (chdir("..") != 0 || rmdir("job") != 0) return 3;
  return 0;
}
