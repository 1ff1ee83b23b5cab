// A symbolic link where the report should go: its target is never written through; the name becomes the report.
//! env CUPOOL_REPORT=link.json
//! report elsewhere
//! setup open(scratch / "precious", "w").write("precious") and os.symlink(scratch / "precious", folder / "link.json")
//! check (folder.parent / "precious").read_text() == "precious"
//! check not (folder / "link.json").is_symlink() and report is not None
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 0;
}
