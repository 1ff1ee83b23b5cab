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
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 0;
}
