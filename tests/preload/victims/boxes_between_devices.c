// Boxes of memory copied between two devices, away from the beginning on both sides, to and from the host, flat and deep: every byte arrives, and only
// there. What the driver refuses it refuses of these, too; and what reaches no other device's block is the program's own call.
//! env CUSIM_DEVICES=2
//! check "wrong: 0" in out
//! case default
//! case pages
//! env CUPOOL_BACKING=pages
//! check calls("cuMemcpy3DPeerAsync") > 0
//! case async_without_link
//! env CUPOOL_POLICY=async
//! env CUSIM_PEERS=0
//! check calls("cuMemcpy3DPeerAsync") > 0
//! case pages_refused
//! args refused
//! env CUPOOL_BACKING=pages
//! misuse
//! check calls("cuMemcpy3DPeerAsync") > 0
//! case async_refused
//! args refused
//! env CUPOOL_POLICY=async
//! env CUSIM_PEERS=0
//! misuse
//! case pages_within_a_device
//! args within
//! env CUPOOL_BACKING=pages
//! check calls("cuMemcpyPeerAsync") + calls("cuMemcpy3DPeerAsync") == 0
//! case async_within_a_device
//! args within
//! env CUPOOL_POLICY=async
//! env CUSIM_PEERS=0
//! check calls("cuMemcpyPeerAsync") + calls("cuMemcpy3DPeerAsync") == 0
#include "victim.h"

enum { kBytes = 96 * KIB };

static CUcontext g_contexts[2];
static CUdeviceptr g_blocks[2], g_others[2];
static unsigned char g_host[kBytes];
static int g_wrong;
static unsigned char g_mark;

static void current(int device) { MUST(cuCtxSetCurrent(g_contexts[device])); }

static unsigned char g_from[kBytes], g_to[kBytes]; /* what the two sides hold */

static void paint(int device, CUdeviceptr block, unsigned char* image) {
  ++g_mark;
  for (int i = 0; i < kBytes; ++i) image[i] = (unsigned char)(7 * i + i / 251 + g_mark);
  current(device);
  MUST(cuMemcpyHtoD(block, image, kBytes));
}

/* Does the destination hold what it held, and the box in its place? `block` 0: it is on the host. */
static void expect_box(const CUDA_MEMCPY3D* box, int device, CUdeviceptr block) {
  if (block != 0) {
    current(device);
    MUST(cuMemcpyDtoH(g_host, block, kBytes));
  }
  for (size_t z = 0; z < box->Depth; ++z)
    for (size_t y = 0; y < box->Height; ++y)
      memcpy(g_to + ((box->dstZ + z) * box->dstHeight + box->dstY + y) * box->dstPitch + box->dstXInBytes,
             g_from + ((box->srcZ + z) * box->srcHeight + box->srcY + y) * box->srcPitch + box->srcXInBytes, box->WidthInBytes);
  if (memcmp(g_host, g_to, kBytes) == 0) return;
  printf("a box from memory of type %d to %d, depth %zu: other bytes\n", box->srcMemoryType, box->dstMemoryType, box->Depth);
  ++g_wrong;
}

/* Copies a box between the types of memory that `box` says, in three dimensions and its first layer in two. */
static void copy_box(CUDA_MEMCPY3D box, int caller, int to, int from, int is_to_host) {
  for (int is_flat = 0; is_flat < 2; ++is_flat) {
    paint(from, g_blocks[from], g_from);
    paint(to, g_blocks[to], g_to);
    memcpy(g_host, g_to, kBytes);
    if (is_flat) box.Depth = 1, box.srcZ = box.dstZ = 0;
    const CUDA_MEMCPY2D flat = {box.srcXInBytes,  box.srcY,  box.srcMemoryType, box.srcHost, box.srcDevice, NULL, box.srcPitch,
                                box.dstXInBytes,  box.dstY,  box.dstMemoryType, box.dstHost, box.dstDevice, NULL, box.dstPitch,
                                box.WidthInBytes, box.Height};
    current(caller);
    if (is_flat) SAY(cuMemcpy2D(&flat));
    else SAY(cuMemcpy3D(&box));
    MUST(cuCtxSynchronize());
    expect_box(&box, to, is_to_host ? 0 : g_blocks[to]);
  }
}

/* Boxes that begin in the middle on both sides, for every pair of types of memory: of a device, and of the host, each by its own type or unified. */
static void boxes(int caller, int to, int from) {
  const CUmemorytype types[] = {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED};
  for (int i = 0; i < 16; ++i) {
    const int is_from_host = i / 4 >= 2, is_to_host = i % 4 >= 2;
    CUDA_MEMCPY3D box = {.srcXInBytes = 3,
                         .srcY = 2,
                         .srcZ = 1,
                         .srcPitch = 256,
                         .srcHeight = 11,
                         .dstXInBytes = 5,
                         .dstY = 4,
                         .dstZ = 2,
                         .dstPitch = 320,
                         .dstHeight = 13,
                         .WidthInBytes = 100,
                         .Height = 7,
                         .Depth = 3};
    if (is_from_host && is_to_host) continue;
    box.srcMemoryType = types[i / 4];
    box.srcDevice = is_from_host ? (CUdeviceptr)(uintptr_t)g_from : g_blocks[from];
    box.srcHost = g_from;
    box.dstMemoryType = types[i % 4];
    box.dstDevice = is_to_host ? (CUdeviceptr)(uintptr_t)g_host : g_blocks[to];
    box.dstHost = g_host;
    copy_box(box, caller, to, from, is_to_host);
  }
}

/* What the driver refuses of a far block as well. */
static void refused(int caller, int owner) {
  CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = g_blocks[owner],
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = g_host,
                       .WidthInBytes = 1,
                       .Height = 1,
                       .Depth = 1};
  current(caller);
  SAY(cuMemcpyDtoD((CUdeviceptr)(uintptr_t)g_host, g_blocks[owner], kBytes));
  SAY(cuMemcpyDtoD(g_blocks[owner], (CUdeviceptr)(uintptr_t)g_host, kBytes));
  SAY(cuMemcpy3D(&box));
  box.srcLOD = 1;
  SAY(cuMemcpy3D(&box));
  box.srcLOD = 0;
  box.dstLOD = 1;
  SAY(cuMemcpy3D(&box));
  SAY(cuMemcpy2D(NULL));
  SAY(cuMemcpy3D(NULL));
}

/* Copies that reach no block of the other device, although a field that does not count names one. */
static void within(int device) {
  current(device);
  SAY(cuMemcpyDtoD(g_others[device], g_blocks[device], kBytes));
  SAY(cuMemcpy(g_others[device], g_blocks[device], kBytes));
  SAY(cuMemcpyDtoDAsync(g_others[device], g_blocks[device], kBytes, NULL));
  SAY(cuMemcpyHtoD(g_blocks[device], g_host, kBytes));
  SAY(cuMemcpyDtoH(g_host, g_blocks[device], kBytes));
  for (int i = 0; i < 3; ++i) {
    const int is_from_host = i == 0, is_to_host = i == 1;
    const CUmemorytype from = is_from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE, to = is_to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED;
    const CUdeviceptr source = g_blocks[is_from_host ? 1 - device : device], target = g_others[is_to_host ? 1 - device : device];
    const CUDA_MEMCPY2D flat = {0, 0, from, g_host, source, NULL, 256, 0, 0, to, g_host, target, NULL, 256, 100, 7};
    const CUDA_MEMCPY3D deep = {.srcMemoryType = from,
                                .srcHost = g_host,
                                .srcDevice = source,
                                .srcPitch = 256,
                                .srcHeight = 8,
                                .dstMemoryType = to,
                                .dstHost = g_host,
                                .dstDevice = target,
                                .dstPitch = 256,
                                .dstHeight = 8,
                                .WidthInBytes = 100,
                                .Height = 7,
                                .Depth = 3};
    SAY(cuMemcpy2D(&flat));
    SAY(cuMemcpy3D(&deep));
  }
}

int main(int argc, char** argv) {
  const char* only = argc > 1 ? argv[1] : "";
  for (int i = 0; i < 2; ++i) {
    g_contexts[i] = enter_device(i);
    g_blocks[i] = allocate(kBytes);
    g_others[i] = allocate(kBytes);
  }
  for (int i = 0; i < 2; ++i) {
    if (strcmp(only, "within") == 0) within(i);
    if (strcmp(only, "refused") == 0) refused(i, 1 - i);
    if (*only != '\0') continue;
    boxes(i, 0, 1);
    boxes(i, 1, 0);
  }
  printf("wrong: %d\n", g_wrong);
  return g_wrong != 0;
}
