/* A library that uses CUDA in its constructor, and frees in its exit handler and in its destructor. */
#ifndef EARLY_AND_LATE_H
#define EARLY_AND_LATE_H
#include <cuda.h>
#include <stdio.h>

#define SAY_AS(what, call) (printf("%s: %d\n", what, (int)(call)), fflush(stdout))

#ifdef __cplusplus
extern "C" {
#endif
CUdeviceptr early_block(void);                                      /* allocated before main */
void late_block(CUdeviceptr by_handler, CUdeviceptr by_destructor); /* freed after it */
#ifdef __cplusplus
}
#endif
#endif
