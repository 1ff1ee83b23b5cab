/* Where an address lies, for the victims of symbol lookup: "libcuda.so.1:cuMemAlloc_v2". */
#ifndef RESOLVE_OBJECT_H
#define RESOLVE_OBJECT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline const char* symbol_at(const void* address) {
  Dl_info info;
  if (address == NULL) return "NULL";
  return dladdr(address, &info) != 0 && info.dli_sname != NULL ? info.dli_sname : "?";
}

static inline const char* object_at(const void* address) {
  Dl_info info;
  if (address == NULL) return "none";
  if (dladdr(address, &info) == 0 || info.dli_fname == NULL) return "?";
  const char* slash = strrchr(info.dli_fname, '/');
  return slash != NULL ? slash + 1 : info.dli_fname;
}

static inline void print_place(const char* what, const void* address) { printf("%s -> %s:%s\n", what, object_at(address), symbol_at(address)); }

/* Opens one of the libraries that lie beside the victims. */
static inline void* open_library(const char* name, int flags) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", getenv("VICTIM_LIBRARIES"), name);
  void* handle = dlopen(path, flags);
  if (handle == NULL) printf("%s\n", dlerror());
  return handle;
}
#endif
