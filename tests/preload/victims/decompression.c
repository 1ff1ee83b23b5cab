// A device that decompresses by hardware takes cuMemAlloc memory for it: so it does blocks on pages (CU_MEM_CREATE_USAGE_HW_DECOMPRESS), also where the
// driver then refuses what the device promised.
//! case promised_and_given
//! env CUSIM_DECOMPRESSION=1
//! env CUPOOL_BACKING=pages
//! check d["backing"] == "pages" and "plain: 0, 1" in out
//! case segments
//! env CUSIM_DECOMPRESSION=1
//! env CUPOOL_BACKING=segments
//! check "plain: 0, 1" in out
//! case refused
//! env CUSIM_DECOMPRESSION=refused
//! env CUPOOL_BACKING=pages
//! check d["backing"] == "pages" and "plain: 0, 0" in out
//! case without
//! env CUPOOL_BACKING=pages
//! check d["backing"] == "pages" and "plain: 0, 0" in out
#include "victim.h"

int main(void) {
  enter_device(0);
  CUdeviceptr block = allocate(3 * MIB);
  unsigned capable = 9;
  CUresult code = cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, block + 5);
  printf("plain: %d, %u\n", code, capable);
  MUST(cuMemFree(block));
  return 0;
}
