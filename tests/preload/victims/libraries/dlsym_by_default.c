/* Stands in for dlsym and calls the first of that version that there is in the program, as one may that has none itself: it must not be
 * sent round in circles. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

typedef void* (*Dlsym)(void*, const char*);
static int plain_lookups;

int jumped_plain_lookups(void) { return plain_lookups; }

void* dlsym(void* handle, const char* name) {
  static Dlsym next;
  if (next == NULL) next = (Dlsym)dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5");
  if (strcmp(name, "plain_lookup") == 0) ++plain_lookups;
  void* found = next(handle, name);
  return found;
}
