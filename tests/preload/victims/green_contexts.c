// Green contexts: what is allocated in one belongs to the primary context. It is freed there, lives on when the green context is
// destroyed, and is not reused while work of the green context may touch it.
//! check c["allocations"] == 4 and c["frees"] == 4 and c["live_blocks"]["current"] == 0 and len(report["devices"]) == 1
//! check c["foreign_frees"] == 0 and "reused early: 0" in out
#include "resolve_object.h"
#include "victim.h"

/* cusim_launch_fill is the simulated driver's own. */
typedef CUresult (*Fill)(CUstream, CUdeviceptr, size_t, unsigned char, unsigned long long);

int main(void) {
  CUcontext primary = enter_device(0), view, owner = NULL;
  CUgreenCtx green = create_green();
  MUST(cuCtxFromGreenCtx(&view, green));
  CUstream stream;
  Fill fill = (Fill)dlsym(RTLD_DEFAULT, "cusim_launch_fill");
  MUST(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  MUST(cuCtxSetCurrent(view));
  CUdeviceptr outlives = allocate(MIB), inside = allocate(MIB);
  MUST(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, outlives));
  printf("owner is the primary: %d\n", owner == primary);
  MUST(fill(stream, outlives, MIB, 7, 1000));
  MUST(fill(stream, inside, MIB, 7, 1000));
  SAY(cuMemFree(inside));
  MUST(cuCtxSetCurrent(primary));
  CUdeviceptr next = allocate(MIB); /* natively the free has waited; in a pool this must be another block, or one whose work is over */
  MUST(cuMemsetD8(next, 1, MIB));
  unsigned char back = 0;
  MUST(cuCtxSynchronize());
  MUST(cuMemcpyDtoH(&back, next, 1));
  printf("reused early: %d\n", back != 1);
  MUST(cuStreamDestroy(stream));
  SAY(cuGreenCtxDestroy(green));
  MUST(cuMemcpyDtoH(&back, outlives + MIB - 1, 1));
  printf("still there: %d\n", back);
  SAY(cuMemFree(outlives));
  SAY(cuMemFree(next));
  SAY(cuMemFree(allocate(MIB)));
  return 0;
}
