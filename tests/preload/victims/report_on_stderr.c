// CUPOOL_REPORT=stderr: the report is the only thing on stderr, and it is JSON.
//! env CUPOOL_REPORT=stderr
//! report elsewhere
//! native same
//! stderr* .*
//! check json.loads(err)["event"] == "exit" and files == []
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 0;
}
