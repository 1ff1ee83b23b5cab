// A name that is no option: one line, with the nearest one that is.
//! check c["allocations"] == 1 and len(warnings) == 1
//! case misspelt
//! env CUPOOL_POLCIY=platform
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*CUPOOL_POLICY.*
//! check d["policy"] == "grow"
//! case far_off
//! env CUPOOL_XYZZY=1
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_XYZZY.*
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 0;
}
