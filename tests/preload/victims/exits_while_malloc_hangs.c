// exit() on top of malloc, as a signal handler does it: no allocation returns any more, so no report can be written. The process ends all
// the same, with its own code, within a bound; the page stays.
//! native skip
//! seconds 15
//! exit 9
//! report absent
//! page left
//! setup env["CUPOOL_RUN_ID"] = "victim"
//! case long_exit
//! args exit
//! case long__exit
//! args _exit
#include <stdatomic.h>

#include "victim.h"

extern void* __libc_malloc(size_t bytes);
static atomic_int is_stuck;

void* malloc(size_t bytes) {
  while (atomic_load(&is_stuck)) pause();
  return __libc_malloc(bytes);
}

int main(int argc, char** argv) {
  enter_device(0);
  allocate(MIB);
  fclose(stdout);
  atomic_store(&is_stuck, 1);
  if (argc > 1 && strcmp(argv[1], "exit") == 0) exit(9);
  _exit(9);
}
