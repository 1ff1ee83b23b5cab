/* Wraps functions of a library behind it through RTLD_NEXT, as allocators' and OpenMP's tool libraries do: whoever stands in for
 * dlsym must leave the caller as it is, or this finds itself and never returns. */
#define _GNU_SOURCE
#include <dlfcn.h>

typedef int (*Probe)(int);

int probe_value(int depth) {
  if (depth > 3) return -1000;
  Probe next = (Probe)dlsym(RTLD_NEXT, "probe_value");
  return next != 0 ? next(depth + 1) + 1 : -1;
}

int cuProbeValue(int depth) {
  if (depth > 3) return -1000;
  Probe next = (Probe)dlsym(RTLD_NEXT, "cuProbeValue");
  return next != 0 ? next(depth + 1) + 1 : -1;
}
