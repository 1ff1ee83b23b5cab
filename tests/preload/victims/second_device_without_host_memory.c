// Host memory is out for a moment where a second device comes into use, or a memory pool is to give it access: what the driver has done by then stands, and is not answered by success where our part is missing.
// Copies between the devices are served afterwards all the same.
//! env CUSIM_DEVICES=2
//! native skip
//! check "copy 0" in out and "access 0, kernel 0" in out
//! case first
//! args 1
//! case second
//! args 2
//! case fifth
//! args 5
//! case tenth
//! args 10
#define _GNU_SOURCE
#include "host_memory.h"

#include "cusim.h"
#include "victim.h"

int main(int argc, char** argv) {
  const uint64_t nth = argc > 1 ? (uint64_t)atoi(argv[1]) : 1;
  static uint64_t requests;  // counted at the exit too
  CUcontext first = enter_device(0), second = NULL;
  CUmemoryPool pool;
  CUstream stream, elsewhere;
  CUdeviceptr ordered = 0;
  watch_host_memory("libcupool", &requests);
  const CUdeviceptr from = allocate(4 * MIB);

  fail_host_memory_here(nth);
  CUresult retained = cuDevicePrimaryCtxRetain(&second, 1);
  fail_host_memory_here(0);
  if (retained != CUDA_SUCCESS) MUST(cuDevicePrimaryCtxRetain(&second, 1));
  MUST(cuCtxSetCurrent(second));
  const CUdeviceptr to = allocate(4 * MIB);
  printf("copy %d\n", (int)cuMemcpy(to, from, 4 * MIB));

  MUST(cuCtxSetCurrent(first));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  MUST(cuMemAllocAsync(&ordered, MIB, stream));
  MUST(cuStreamSynchronize(stream));
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 1;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  fail_host_memory_here(nth);
  CUresult given = cuMemPoolSetAccess(pool, &access, 1);
  fail_host_memory_here(0);
  if (given == CUDA_ERROR_OUT_OF_MEMORY) given = cuMemPoolSetAccess(pool, &access, 1);
  MUST(cuCtxSetCurrent(second));
  MUST(cuStreamCreate(&elsewhere, CU_STREAM_NON_BLOCKING));
  CUresult kernel = cusim_launch_fill(elsewhere, ordered, MIB, 3, 10);
  if (kernel == CUDA_SUCCESS) kernel = cuStreamSynchronize(elsewhere);
  printf("access %d, kernel %d\n", (int)given, (int)kernel);
  return 0;
}
