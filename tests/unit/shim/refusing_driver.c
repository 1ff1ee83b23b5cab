/* Every driver function that the pool may call, present and answering CUDA_ERROR_NOT_SUPPORTED, for a test driver to
 * override by strong definitions. Without <cuda.h>, so that one line defines a function of any signature. */
#define DRIVER_CALL(symbol, since, need) \
  __attribute__((weak)) int symbol(void) { return 801; }
#include "pool/driver/driver_api.def"
