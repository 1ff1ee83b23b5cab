/* Stands between the real cudart and libcupool.so, and writes down every driver lookup and what it gave.
 *
 * Preloaded before libcupool.so: its dlsym is the one that cudart calls, and passes each call on to the library's. What cudart
 * gets as cuGetProcAddress is a wrapper of ours around what the library gave, so that the lookups through the re-resolved
 * pointer (at 11030 and at 12000) are seen too; which pointer those lookups gave is written down before it is wrapped.
 * LOOKUPS_LOG: the file. LOOKUPS_LIBRARY: path of libcupool.so, or unset to record what the driver alone gives.
 * Lines: <how> <name> <version> <flags> <result> <object> <symbol>
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void* (*Dlsym)(void*, const char*);
typedef int (*GetProcAddressV1)(const char*, void**, int, unsigned long long);
typedef int (*GetProcAddressV2)(const char*, void**, int, unsigned long long, int*);

static GetProcAddressV1 next_v1;
static GetProcAddressV2 next_v2;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static Dlsym next_dlsym(void) {
  static Dlsym next;
  if (next == NULL) {
    Dlsym real = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    const char* library = getenv("LOOKUPS_LIBRARY");
    void* handle = library != NULL ? dlopen(library, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void* hooked = handle != NULL ? real(handle, "dlsym") : NULL;
    next = hooked != NULL ? (Dlsym)hooked : (Dlsym)dlvsym(dlopen("libc.so.6", RTLD_NOW), "dlsym", "GLIBC_2.2.5");
  }
  return next;
}

static void write_down(const char* how, const char* name, int version, unsigned long long flags, int result, void* found) {
  Dl_info info = {0};
  if (found != NULL) dladdr(found, &info);
  const char* object = info.dli_fname != NULL ? strrchr(info.dli_fname, '/') : NULL;
  pthread_mutex_lock(&mutex);
  FILE* file = fopen(getenv("LOOKUPS_LOG"), "a");
  fprintf(file, "%s %s %d %llu %d %s %s\n", how, *name != '\0' ? name : "\"\"", version, flags, result, object != NULL ? object + 1 : "-",
          info.dli_sname != NULL ? info.dli_sname : "-");
  fclose(file);
  pthread_mutex_unlock(&mutex);
}

static int wrapper_v2(const char*, void**, int, unsigned long long, int*);

static int wrapper_v1(const char* name, void** out, int version, unsigned long long flags) {
  int result = next_v1(name, out, version, flags);
  write_down("v1", name, version, flags, result, out != NULL ? *out : NULL);
  return result;
}

static int wrapper_v2(const char* name, void** out, int version, unsigned long long flags, int* status) {
  int result = next_v2(name, out, version, flags, status);
  write_down("v2", name, version, flags, result, out != NULL ? *out : NULL);
  if (result != 0 || strcmp(name, "cuGetProcAddress") != 0 || *out == NULL) return result;
  if (version >= 12000) {
    next_v2 = (GetProcAddressV2)*out;
    *out = (void*)wrapper_v2;
  } else {
    next_v1 = (GetProcAddressV1)*out;
    *out = (void*)wrapper_v1;
  }
  return result;
}

__attribute__((visibility("default"))) void* dlsym(void* handle, const char* name) {
  void* found = next_dlsym()(handle, name);
  if (strncmp(name, "cu", 2) != 0) return found;
  const char* refused = getenv("LOOKUPS_WITHOUT"); /* a driver that lacks this one: cudart then falls back to plain dlsym */
  if (refused != NULL && strcmp(refused, name) == 0) found = NULL;
  write_down("dlsym", name, 0, 0, found == NULL, found);
  if (found == NULL || strcmp(name, "cuGetProcAddress_v2") != 0) return found;
  next_v2 = (GetProcAddressV2)found;
  return (void*)wrapper_v2;
}
