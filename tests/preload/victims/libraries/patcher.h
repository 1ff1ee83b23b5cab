/* What patcher.c saw through the jumps that it wrote into the driver. */
#ifndef PATCHER_H
#define PATCHER_H
#include <stddef.h>

struct patcher_counts {
  int allocations;
  int frees;
  int known_frees; /* at which the driver still knew the block by this very address */
  unsigned long long last_address;
  size_t last_bytes;
  size_t last_freed_bytes;
};

/* Returns how many of four functions it patched, and the object that they lie in. `find_elsewhere`: another lookup than ucm's. */
int patcher_install(void* (*find_elsewhere)(const char*), int is_far, const char** object);
#endif
