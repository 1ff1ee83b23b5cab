// Arrays count for what they take: formats of 16 bits for two bytes a channel, and those whose memory the program maps later for none.
//! env CUSIM_MEMORY=1GiB
//! case later
//! env CUPOOL_LIMIT=500MiB
//! args later
//! check "array: 0" in out and "mipmapped: 0" in out and d["outside"]["arrays"] == 0 and ooms == []
//! case sparse
//! env CUPOOL_LIMIT=500MiB
//! args sparse
//! check "array: 0" in out and "mipmapped: 0" in out and d["outside"]["arrays"] == 0 and ooms == []
//! case wide
//! args wide
//! check "array: 0" in out and d["outside"]["arrays"] == 256 * MiB and d["ledger"]["unattributed"] <= 128 * MiB
#include "victim.h"

int main(int count, char** names) {
  const char* what = count > 1 ? names[1] : "";
  const int is_wide = strcmp(what, "wide") == 0;
  CUarray array = NULL;
  CUmipmappedArray mipmapped = NULL;
  CUDA_ARRAY3D_DESCRIPTOR shape;
  memset(&shape, 0, sizeof shape);
  shape.Width = shape.Height = 8192;
  shape.Format = is_wide ? CU_AD_FORMAT_UNORM_INT16X2 : CU_AD_FORMAT_FLOAT; /* 256 MiB, or a GiB */
  shape.NumChannels = is_wide ? 2 : 4;
  shape.Flags = is_wide ? 0 : strcmp(what, "sparse") == 0 ? CUDA_ARRAY3D_SPARSE : CUDA_ARRAY3D_DEFERRED_MAPPING;
  enter_device(0);
  allocate(MIB);
  printf("array: %d\n", cuArray3DCreate(&array, &shape));
  if (!is_wide) printf("mipmapped: %d\n", cuMipmappedArrayCreate(&mipmapped, &shape, 4));
  return 0;
}
