/* Stream-ordered memory, memory pools, captures and graphs, memory for other processes. */
#include <pthread.h>

#include "calls.h"

CUresult cuMemAllocAsync_ptsz(CUdeviceptr*, size_t, CUstream);

static void* in_another_thread(void* argument) {
  const struct World* world = argument;
  be_virtual(true);
  const bool ready = OK(DO(true, cuCtxSetCurrent, world->contexts[0]));
  const struct Block ordered = take(ready, kOrderedPerThread, 1 << 19, NULL, NULL);
  const struct Block plain = take(ready, kPlain, 1 << 18, NULL, NULL);
  give(ordered, kOrderedPerThread, NULL);
  give(plain, kPlain, NULL);
  DO(ready, cuStreamSynchronize, CU_STREAM_PER_THREAD);
  return NULL;
}

void stream_ordered(struct World* world) {
  const bool ready = world->contexts[0] != NULL && world->blocking != NULL && world->other != NULL;
  struct Block blocks[6];
  pthread_t thread;
  CUevent event = NULL;
  for (int i = 0; i < 6; ++i) blocks[i] = take(ready, kOrdered, (size_t)(i + 1) << 18, i % 2 ? world->other : world->blocking, NULL);
  for (int i = 0; i < 3; ++i) give(blocks[i], kOrdered, blocks[i].stream);
  for (int i = 0; i < 3; ++i) blocks[i] = take(ready, kOrdered, (size_t)(i + 1) << 18, i % 2 ? world->other : world->blocking, NULL);
  const bool has_event = OK(DO(ready, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING));
  const bool is_recorded = OK(DO(has_event, cuEventRecord, event, world->blocking));
  const bool is_behind = OK(DO(is_recorded, cuStreamWaitEvent, world->other, event, 0));
  if (is_behind) blocks[0].stream = world->other;
  give(blocks[0], kOrdered, blocks[0].stream); /* in another stream, behind the event */
  give(blocks[1], kPlain, NULL);
  const struct Block mixed = take(ready, kPlain, 1 << 20, world->other, NULL);
  give(mixed, kOrdered, world->other);
  for (int i = 2; i < 6; ++i) give(blocks[i], kOrdered, blocks[i].stream);
  DO(ready, cuStreamSynchronize, world->blocking);
  DO(ready, cuStreamSynchronize, world->other);
  DO(has_event, cuEventDestroy, event);
  pthread_create(&thread, NULL, in_another_thread, world);
  pthread_join(thread, NULL);
}

/* Few sizes again and again: a thread may keep what it freed on a stream for its next allocations there. A capture runs and a stream ends meanwhile. */
void kept_on_streams(struct World* world) {
  const bool ready = world->contexts[0] != NULL && world->blocking != NULL && world->other != NULL;
  CUstream ends = NULL;
  CUgraph graph = NULL;
  const bool has_stream = OK(DO(ready, cuStreamCreate, &ends, CU_STREAM_NON_BLOCKING));
  const CUstream streams[] = {world->blocking, world->other, has_stream ? ends : NULL};
  bool begun = false;
  for (int round = 0; round < 5; ++round) {
    if (round == 3) begun = OK(DO(has_stream, cuStreamBeginCapture, ends, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < 3; ++i) {
      const bool may = ready && !(begun && i == 2);
      const struct Block one = take(may, kOrdered, 4096, streams[i], NULL), two = take(may, kOrdered, 20000, streams[i], NULL);
      give(one, kOrdered, streams[i]);
      give(two, kOrdered, streams[i]);
    }
    if (round != 3) continue;
    const CUresult ended = DO(begun, cuStreamEndCapture, ends, &graph);
    const bool is_ended = OK(DO(begun && !OK(ended), cuStreamEndCapture, ends, &graph)) || OK(ended);
    END(begun && is_ended && graph != NULL, cuGraphDestroy, graph);
    begun = begun && !is_ended;
  }
  END(has_stream, cuStreamDestroy, ends);
  const struct Block after = take(ready, kPlain, 4096, NULL, NULL);
  give(after, kPlain, NULL);
}

/* Two streams in a full device: what the one has freed the other wants, while it may still be in use. */
void full_streams(struct World* world) {
  enum { kMost = 13 };
  const bool ready = world->contexts[0] != NULL && world->blocking != NULL && world->other != NULL;
  const CUstream streams[] = {world->blocking, world->other};
  struct Block blocks[kMost];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kMost; ++i) blocks[i] = take_full_on(ready, (size_t)(i % 3 + 15) << 20, streams[(i + round) % 2]);
    for (int i = 0; i < kMost; ++i) use(&blocks[i], blocks[i].stream, 50000);
    for (int i = 0; i < kMost; ++i) give(blocks[i], kOrdered, blocks[i].stream);
  }
  const struct Block big = take_full_on(ready, 96 << 20, world->blocking);
  give(big, kOrdered, world->blocking);
  DO(ready, cuStreamSynchronize, world->blocking);
  DO(ready, cuStreamSynchronize, world->other);
}

void memory_pools(struct World* world) {
  const bool ready = world->contexts[0] != NULL && world->blocking != NULL;
  CUmemPoolProps properties = {0};
  CUmemoryPool standard = NULL, own = NULL;
  cuuint64_t value = 0;
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  const bool has_standard = OK(DO(ready, cuDeviceGetDefaultMemPool, &standard, 0));
  const bool has_own = OK(DO(ready, cuMemPoolCreate, &own, &properties));
  value = 1 << 20;
  DO(has_own, cuMemPoolSetAttribute, own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
  const struct Block from_own = take(has_own, kFromPool, 1 << 20, world->blocking, own);
  DO(has_own, cuMemPoolGetAttribute, own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
  const bool is_current = OK(DO(has_own && has_standard, cuDeviceSetMemPool, 0, own));
  const struct Block from_current = take(ready, kOrdered, 1 << 20, world->blocking, NULL);
  const CUresult restored = DO(is_current, cuDeviceSetMemPool, 0, standard);
  DO(is_current && !OK(restored), cuDeviceSetMemPool, 0, standard);
  give(from_current, kOrdered, world->blocking);
  give(from_own, kFromPool, world->blocking);
  DO(ready, cuStreamSynchronize, world->blocking);
  DO(has_own, cuMemPoolTrimTo, own, 0);
  END(has_own, cuMemPoolDestroy, own);
  DO(has_standard, cuMemPoolTrimTo, standard, 1 << 20);
}

/* A graph with memory nodes, recorded while the program goes on allocating and freeing (relaxed: natively allowed). */
void captures(struct World* world) {
  const bool ready = world->contexts[0] != NULL && world->blocking != NULL && world->other != NULL;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUdeviceptr captured = 0;
  CUstreamCaptureStatus status;
  struct Block before = take(ready, kPlain, 1 << 20, NULL, NULL);
  const bool begun = OK(DO(ready, cuStreamBeginCapture, world->other, CU_STREAM_CAPTURE_MODE_RELAXED));
  const bool has_node = OK(DO(begun, cuMemAllocAsync, &captured, 1 << 20, world->other));
  DO(has_node, cuMemsetD8Async, captured, 42, 1 << 20, world->other);
  give(before, kPlain, NULL);
  const struct Block inside = take(ready, kPlain, 3 << 20, NULL, NULL);
  const struct Block ordered = take(ready, kOrdered, 1 << 19, world->blocking, NULL);
  give(inside, kPlain, NULL);
  give(ordered, kOrdered, world->blocking);
  const CUresult node_freed = DO(has_node, cuMemFreeAsync, captured, world->other);
  const bool is_freed = OK(DO(has_node && !OK(node_freed), cuMemFreeAsync, captured, world->other)) || OK(node_freed);
  DO(begun, cuStreamIsCapturing, world->other, &status);
  const CUresult ended = DO(begun, cuStreamEndCapture, world->other, &graph);
  const bool is_ended = OK(DO(begun && !OK(ended), cuStreamEndCapture, world->other, &graph)) || OK(ended);
  const bool has_graph = begun && is_ended && graph != NULL;
  const bool has_exec = OK(DO(has_graph, cuGraphInstantiateWithFlags, &exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  DO(has_exec, cuGraphUpload, exec, world->other);
  bool has_launched = false;
  for (int i = 0; i < 2; ++i) has_launched = OK(DO(has_exec, cuGraphLaunch, exec, world->other)) || has_launched;
  const struct Block after = take(ready, kPlain, 3 << 20, NULL, NULL);
  give(after, kPlain, NULL);
  DO(ready, cuStreamSynchronize, world->other);
  DO(has_launched && !is_freed, cuMemFreeAsync, captured, world->other);
  END(has_exec, cuGraphExecDestroy, exec);
  END(has_graph, cuGraphDestroy, graph);
  END(ready, cuDeviceGraphMemTrim, 0);
}

/* Exported, offered to oneself (which the driver refuses), freed. */
void shared_memory(struct World* world) {
  const bool ready = world->contexts[0] != NULL;
  const struct Block blocks[2] = {take(ready, kPlain, 1 << 20, NULL, NULL), take(ready, kPlain, 6 << 20, NULL, NULL)};
  CUipcMemHandle handle;
  CUdeviceptr opened = 0;
  for (int i = 0; i < 2; ++i) {
    const bool is_exported = OK(DO(blocks[i].address != 0, cuIpcGetMemHandle, &handle, blocks[i].address));
    DO(is_exported, cuIpcOpenMemHandle, &opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  for (int i = 0; i < 2; ++i) give(blocks[i], kPlain, NULL);
}
