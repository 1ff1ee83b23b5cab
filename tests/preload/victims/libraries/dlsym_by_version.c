/* Stands in for dlsym as tracers and device-sharing libraries do, in C: finds the next one by dlvsym and calls it. So RTLD_NEXT of others
 * means "behind this library", with or without us. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

typedef void* (*Dlsym)(void*, const char*);
static int plain_lookups;

int seen_plain_lookups(void) { return plain_lookups; }

void* dlsym(void* handle, const char* name) {
  static Dlsym next;
  if (next == NULL) next = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  if (strcmp(name, "plain_lookup") == 0) ++plain_lookups;
  void* found = next(handle, name);
  return found;
}
