// A context ends with everything in it: live blocks, freed ones whose work still runs, epochs on their way, lanes and stamped frees of
// streams, a memory pool in use, arrays, pinned and managed memory. All of it is gone with the context, from the books and from the limit too, but for
// memory of pools where the context was destroyed (CUDA Driver API 13.0, cuCtxDestroy), and the blocks of the device's other contexts are whole.
//! check c["live_blocks"]["current"] == 0 and c["deferred_bytes"]["current"] <= 20 * MiB and sim["devices"][0]["used_bytes"] == c["reserved_bytes"]["current"]
//! check d["outside"]["arrays"] == 0 and d["outside"]["managed"] == 0 and d["outside"]["host"] == 0 and d["ledger"].get("outside_arrays", 0) == 0
//! check c["allocations"] > 400
//! case destroyed
//! args destroy
//! case destroyed_by_another_thread
//! args elsewhere
//! case reset
//! args reset
//! case released
//! args release
//! case platform
//! env CUPOOL_POLICY=platform
//! args destroy
//! case async
//! env CUPOOL_POLICY=async
//! args destroy
//! case synchronous_frees
//! env CUPOOL_FREE=sync
//! args destroy
//! case under_a_limit
//! env CUPOOL_LIMIT=1GiB
//! args destroy
//! case reset_under_a_limit
//! env CUPOOL_LIMIT=1GiB
//! args reset
#include <pthread.h>

#include "cusim.h"
#include "victim.h"

static const char* g_way;

static CUdeviceptr g_left[8];
static int g_left_count;

static CUmemoryPool fill_context(void) {
  CUmemPoolProps properties = {0};
  CUmemoryPool pool = NULL;
  CUstream streams[2];
  CUarray array = NULL;
  CUDA_ARRAY_DESCRIPTOR shape = {8192, 8192, CU_AD_FORMAT_FLOAT, 1}; /* 256 MiB */
  void* host = NULL;
  CUdeviceptr address = 0, ordered[8];
  for (int i = 0; i < 2; ++i) MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuMemPoolCreate(&pool, &properties));
  MUST(cuArrayCreate(&array, &shape));
  MUST(cuMemAllocManaged(&address, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
  MUST(cuMemHostAlloc(&host, MIB, 0));
  for (int i = 0; i < 8; ++i)
    MUST(i % 2 ? cuMemAllocFromPoolAsync(&ordered[i], MIB, pool, streams[i / 4]) : cuMemAllocAsync(&ordered[i], MIB, streams[i / 4]));
  for (int i = 0; i < 8; ++i) {
    if (i != 1) MUST(cusim_launch_fill(streams[i / 4], ordered[i], MIB, 1, 1000000)); /* 1 is freed without a wait */
  }
  for (int i = 0; i < 8; i += 3) MUST(cuMemFreeAsync(ordered[i], streams[i / 4]));
  CUdeviceptr plain[70];
  for (int i = 0; i < 70; ++i) plain[i] = allocate((size_t)(i % 7 + 1) * 100 * KIB);
  for (int i = 0; i < 70; ++i) MUST(cusim_launch_fill(streams[i % 2], plain[i], 1000, 2, 1000));
  for (int i = 0; i < 67; ++i) MUST(cuMemFree(plain[i])); /* one closed epoch and an open one */
  MUST(cuMemFreeAsync(plain[68], streams[0]));
  MUST(cuMemFree(ordered[1]));
  const int left[] = {2, 4, 5, 7};
  for (int i = 0; i < 4; ++i) g_left[g_left_count++] = ordered[left[i]];
  return pool;
}

static void* destroy(void* context) {
  SAY(cuCtxDestroy((CUcontext)context));
  return NULL;
}

static void end_context(CUcontext context) {
  pthread_t thread;
  if (strcmp(g_way, "reset") == 0) SAY(cuDevicePrimaryCtxReset(0));
  else if (strcmp(g_way, "release") == 0) SAY(cuDevicePrimaryCtxRelease(0));
  else if (strcmp(g_way, "destroy") == 0) SAY(cuCtxDestroy(context));
  else pthread_create(&thread, NULL, destroy, context), pthread_join(thread, NULL);
}

static CUcontext begin_context(void) {
  CUcontext context = NULL;
  if (strcmp(g_way, "reset") != 0 && strcmp(g_way, "release") != 0) MUST(create_context(&context, 0, 0));
  else MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  return context;
}

int main(int argc, char** argv) {
  g_way = argc > 1 ? argv[1] : "destroy";
  CUcontext neighbour;
  MUST(cuInit(0));
  MUST(create_context(&neighbour, 0, 0));
  CUdeviceptr kept = allocate(MIB), parted = allocate(MIB);
  MUST(cuMemsetD8(kept, 5, MIB));
  MUST(cuMemFree(parted));
  for (int round = 0; round < 6; ++round) {
    unsigned char back = 0;
    cuuint64_t used = 1;
    CUcontext context = begin_context();
    CUmemoryPool pool = fill_context();
    end_context(context);
    MUST(cuCtxSetCurrent(neighbour));
    SAY(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    printf("used %llu\n", (unsigned long long)used);
    const int stays = strcmp(g_way, "reset") != 0 && strcmp(g_way, "release") != 0;
    for (; g_left_count != 0; --g_left_count) {
      if (!stays) continue;
      MUST(cuMemcpyDtoH(&back, g_left[g_left_count - 1] + MIB - 1, 1));
      printf("left behind: %d\n", back);
      SAY(cuMemFree(g_left[g_left_count - 1]));
    }
    SAY(cuMemPoolDestroy(pool));
    MUST(cuMemcpyDtoH(&back, kept + MIB - 1, 1));
    printf("neighbour's byte: %d\n", back);
    MUST(cuMemFree(allocate(3 * MIB)));
  }
  SAY(cuMemFree(kept));
  SAY(cuCtxSynchronize());
  return 0;
}
