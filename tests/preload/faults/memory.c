/* Plain memory, what is asked about it, memory outside the pool, and a device that runs full. */
#include "calls.h"

enum { kMost = 13 };

void questions(struct World* world, struct Block block) {
  const bool ready = block.address != 0;
  CUdeviceptr base = 0;
  size_t bytes = 0, total = 0;
  CUcontext context = NULL;
  unsigned long long id = 0;
  unsigned on = 1, type = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_CONTEXT};
  void* values[] = {&type, &base, &context};
  DO(world->contexts[0] != NULL, cuMemGetInfo, &bytes, &total);
  DO(ready, cuMemGetAddressRange, &base, &bytes, block.address + 1);
  DO(ready, cuPointerGetAttribute, &context, CU_POINTER_ATTRIBUTE_CONTEXT, block.address);
  DO(ready, cuPointerGetAttribute, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, block.address);
  DO(ready, cuPointerGetAttributes, 3, names, values, block.address);
  DO(ready, cuPointerSetAttribute, &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block.address);
  on = 0;
  DO(ready, cuPointerSetAttribute, &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block.address);
}

void plain_memory(struct World* world) {
  const bool ready = world->contexts[0] != NULL;
  static const size_t sizes[] = {512, 1000, 4096, 70000, 1 << 20, 3 << 20, 5 << 20, 33};
  struct Block blocks[8], small[70];
  for (int i = 0; i < 8; ++i) blocks[i] = take(ready, i == 3 ? kPitch : kPlain, sizes[i], NULL, NULL);
  questions(world, blocks[4]);
  for (int i = 0; i < 8; i += 2) give(blocks[i], kPlain, NULL);
  blocks[0] = take(ready, kPlain, 2 << 20, NULL, NULL);
  use(&blocks[0], world->other, 1000000);
  give(blocks[0], kPlain, NULL);
  blocks[0] = take(ready, kPlain, 2 << 20, NULL, NULL);
  for (int i = 0; i < 70; ++i) small[i] = take(ready, kPlain, 2048 * (size_t)(1 + i % 5), i % 3 == 0 ? world->other : NULL, NULL);
  for (int i = 0; i < 70; ++i) give(small[i], kPlain, NULL);
  DO(ready, cuCtxSynchronize);
  for (int i = 0; i < 8; i += 2) small[i] = take(ready, kPlain, 4096, NULL, NULL);
  for (int i = 0; i < 8; i += 2) give(small[i], kPlain, NULL);
  give(blocks[0], kPlain, NULL);
  for (int i = 1; i < 8; i += 2) give(blocks[i], kPlain, NULL);
}

static void physical_memory(bool ready) {
  CUmemAllocationProp properties = {0};
  CUmemAccessDesc access = {0};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  size_t granularity = 2 << 20;
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  DO(ready, cuMemGetAllocationGranularity, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  const bool is_made = OK(DO(ready, cuMemCreate, &handle, 2 << 20, &properties, 0));
  const bool is_reserved = OK(DO(ready, cuMemAddressReserve, &address, 2 << 20, 0, 0, 0));
  const bool is_mapped = OK(DO(is_made && is_reserved, cuMemMap, address, 2 << 20, 0, handle, 0));
  DO(is_mapped, cuMemSetAccess, address, 2 << 20, &access, 1);
  const CUresult unmapped = DO(is_mapped, cuMemUnmap, address, 2 << 20);
  DO(is_mapped && !OK(unmapped), cuMemUnmap, address, 2 << 20);
  END(is_made, cuMemRelease, handle);
  DO(is_reserved, cuMemAddressFree, address, 2 << 20);
}

void outside_memory(struct World* world) {
  const bool ready = world->contexts[0] != NULL;
  static char host_page[8192] __attribute__((aligned(4096)));
  const CUDA_ARRAY_DESCRIPTOR shape = {256, 256, CU_AD_FORMAT_FLOAT, 1};
  CUdeviceptr managed = 0;
  void* host = NULL;
  CUarray array = NULL;
  const bool has_managed = OK(DO(ready, cuMemAllocManaged, &managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  const bool has_host = OK(DO(ready, cuMemHostAlloc, &host, 1 << 16, 0));
  const bool has_page = OK(DO(ready, cuMemHostRegister, host_page, 4096, 0));
  const bool has_array = OK(DO(ready, cuArrayCreate, &array, &shape));
  physical_memory(ready);
  END(has_managed, cuMemFree, managed);
  END(has_host, cuMemFreeHost, host);
  END(has_page, cuMemHostUnregister, host_page);
  END(has_array, cuArrayDestroy, array);
}

/* Memory runs out under pending work; what was freed in pieces is wanted back whole, by the pool and by others. */
void full_device(struct World* world) {
  const bool ready = world->contexts[0] != NULL;
  struct Block blocks[kMost], big;
  const CUDA_ARRAY_DESCRIPTOR shape = {4096, 2048, CU_AD_FORMAT_FLOAT, 1}; /* 32 MiB */
  CUarray array = NULL;
  CUmodule module = NULL;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kMost; ++i) blocks[i] = take_full(ready, 16 << 20);
    for (int i = 0; i < kMost; ++i) use(&blocks[i], i % 2 ? world->other : NULL, 50000);
    for (int i = 0; i < kMost; ++i) give(blocks[i], kPlain, NULL);
    cusim_advance_ns(kLong_ns);
    big =
        round == 0 ? take(ready, kPlain, 128 << 20, NULL, NULL) : take(ready && world->blocking != NULL, kOrdered, 128 << 20, world->blocking, NULL);
    give(big, round == 0 ? kPlain : kOrdered, world->blocking);
  }
  for (int i = 0; i < kMost; ++i) blocks[i] = take_full(ready, 16 << 20);
  for (int i = 0; i < kMost; ++i) give(blocks[i], kPlain, NULL);
  cusim_advance_ns(kLong_ns);
  const bool has_array = OK(DO(ready, cuArrayCreate, &array, &shape));
  const bool has_module = OK(DO(ready, cuModuleLoadData, &module, "no code"));
  END(has_module, cuModuleUnload, module);
  END(has_array, cuArrayDestroy, array);
}
