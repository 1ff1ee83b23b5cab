// CUPOOL_LOG_FILE: warnings go there, not to stderr; patterns are expanded; a link is not followed.
//! env CUPOOL_POLCIY=x
//! case file
//! env CUPOOL_LOG_FILE=log.%p.txt
//! check "CUPOOL_POLCIY" in (folder / f"log.{pid}.txt").read_text()
//! case unwritable
//! env CUPOOL_LOG_FILE=/nowhere/log.txt
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_LOG_FILE.*
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_POLCIY.*
//! case silent
//! env CUPOOL_LOG=off
//! check len(warnings) == 1
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 0;
}
