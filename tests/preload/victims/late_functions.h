/* Functions that a program looked up late, or through another library, beside those that it calls by name: they must be of one kind. */
#ifndef LATE_FUNCTIONS_H
#define LATE_FUNCTIONS_H
#include "victim.h"

typedef CUresult (*LateAllocate)(CUdeviceptr*, size_t);
typedef CUresult (*LateFree)(CUdeviceptr);

/* Each frees what the other has allocated; `neighbour` of 64 KiB lies beside `first`, and its bytes are 7. */
static inline void use_both_kinds(CUdeviceptr first, CUdeviceptr neighbour, LateAllocate late_allocate, LateFree late_free) {
  CUdeviceptr third = 0;
  unsigned char value = 0;
  SAY(late_free(first));
  SAY(late_allocate(&third, 64 * KIB));
  SAY(cuMemcpyDtoH(&value, neighbour, 1));
  printf("%d\n", value);
  SAY(cuMemFree(third));
  SAY(late_free(neighbour));
}

#endif
