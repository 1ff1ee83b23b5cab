/* A second context that dies with blocks in it, a green context, a second device with peer access. */
#include "calls.h"

CUresult cuCtxCreate_v2(CUcontext*, unsigned, CUdevice);

void enter(struct World* world) {
  const bool ready = world->contexts[0] != NULL;
  const CUresult first = DO(ready, cuCtxSetCurrent, world->contexts[0]);
  DO(ready && !OK(first), cuCtxSetCurrent, world->contexts[0]);
}

void second_context(struct World* world) {
  const bool ready = world->contexts[0] != NULL;
  CUcontext second = NULL, popped = NULL;
  const bool has_second = OK(DO(ready, cuCtxCreate_v2, &second, 0, world->devices[0]));
  const struct Block freed_elsewhere = take(has_second, kPlain, 1 << 20, NULL, NULL);
  const struct Block freed_here = take(has_second, kPlain, 3 << 20, NULL, NULL);
  CUdeviceptr dies = 0;
  DO(has_second, cuMemAlloc, &dies, 1 << 20);
  give(freed_here, kPlain, NULL);
  cusim_advance_ns(kWritten_ns); /* natively the free has waited; a context that breaks from here on must have written as much */
  check(freed_elsewhere);        /* in its own context: the free waits for no other */
  const bool is_popped = OK(DO(has_second, cuCtxPopCurrent, &popped));
  DO(has_second && !is_popped, cuCtxSetCurrent, world->contexts[0]);
  give_checked(freed_elsewhere, kPlain, NULL);
  const struct Block primarys = take(ready, kPlain, 1 << 20, NULL, NULL);
  END_CONTEXT(has_second, cuCtxDestroy, second);
  lose(freed_here);
  lose(freed_elsewhere);
  enter(world);
  give(primarys, kPlain, NULL);
}

void green_context(struct World* world) {
  const bool ready = world->contexts[0] != NULL;
  CUdevResource all, part;
  unsigned count = 1;
  CUdevResourceDesc description = NULL;
  CUgreenCtx green = NULL;
  CUcontext view = NULL;
  CUstream stream = NULL;
  bool go = OK(DO(ready, cuDeviceGetDevResource, world->devices[0], &all, CU_DEV_RESOURCE_TYPE_SM));
  go = OK(DO(go, cuDevSmResourceSplitByCount, &part, &count, &all, NULL, 0, 16));
  go = OK(DO(go, cuDevResourceGenerateDesc, &description, &part, 1));
  const bool has_green = OK(DO(go, cuGreenCtxCreate, &green, description, world->devices[0], CU_GREEN_CTX_DEFAULT_STREAM));
  const bool has_stream = OK(DO(has_green, cuGreenCtxStreamCreate, &stream, green, CU_STREAM_NON_BLOCKING, 0));
  const bool has_view = OK(DO(has_green, cuCtxFromGreenCtx, &view, green));
  const bool is_inside = OK(DO(has_view, cuCtxSetCurrent, view));
  struct Block blocks[2] = {take(is_inside, kPlain, 1 << 20, NULL, NULL), take(is_inside && has_stream, kOrdered, 1 << 20, stream, NULL)};
  give(blocks[1], kOrdered, stream);
  enter(world);
  DO(has_stream, cuStreamSynchronize, stream);
  DO(has_stream, cuStreamDestroy, stream);
  blocks[0].stream = NULL;
  give(blocks[0], kPlain, NULL);
  END_CONTEXT(has_green, cuGreenCtxDestroy, green);
}

static void shared_pool(struct World* world) {
  CUmemoryPool standard = NULL;
  CUmemAccessDesc access = {0};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 1;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const bool has_standard = OK(DO(world->contexts[0] != NULL, cuDeviceGetDefaultMemPool, &standard, 0));
  DO(has_standard, cuMemPoolSetAccess, standard, &access, 1);
}

void second_device(struct World* world) {
  const bool ready = world->contexts[0] != NULL;
  int can_access = 0;
  struct Block here = take(ready, kPlain, 1 << 20, NULL, NULL);
  const bool has_other = OK(DO(ready, cuDevicePrimaryCtxRetain, &world->contexts[1], world->devices[1]));
  if (!has_other) world->contexts[1] = NULL;
  const bool is_there = OK(DO(has_other, cuCtxSetCurrent, world->contexts[1]));
  const struct Block there = take(is_there, kPlain, 1 << 20, NULL, NULL);
  const struct Block left = take(is_there, kPlain, 5 << 20, NULL, NULL);
  DO(has_other, cuDeviceCanAccessPeer, &can_access, world->devices[1], world->devices[0]);
  const bool is_peer = OK(DO(is_there, cuCtxEnablePeerAccess, world->contexts[0], 0));
  if (is_peer) use(&here, NULL, 1000);
  DO(is_there && there.address != 0 && here.address != 0, cuMemcpyPeer, there.address, world->contexts[1], here.address, world->contexts[0], 0);
  DO(is_there, cuCtxSynchronize);
  give(left, kPlain, NULL);
  DO(is_peer, cuCtxDisablePeerAccess, world->contexts[0]);
  enter(world);
  here.stream = NULL;
  give(here, kPlain, NULL);
  shared_pool(world);
  const struct Block after = take(ready, kPlain, 1 << 20, NULL, NULL);
  END_CONTEXT(has_other, cuDevicePrimaryCtxReset, world->devices[1]);
  END_CONTEXT(has_other, cuDevicePrimaryCtxRelease, world->devices[1]);
  lose(there);
  lose(left);
  give(after, kPlain, NULL);
}
