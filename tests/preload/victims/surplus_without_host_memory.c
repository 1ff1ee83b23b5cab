// A free whose surplus should go back to the driver (CUPOOL_RELEASE_THRESHOLD) while host memory is out: the block is freed all the same, and once. An interrupted free is
// made later; were this one made again, the block that lies there by then would be freed under whoever has it.
//! check "given twice 0, refused 0" in out
//! check c["live_blocks"]["current"] == 0 and c["frees"] == c["allocations"] and c["foreign_frees"] == 0
//! env CUPOOL_RELEASE_THRESHOLD=0
//! case immediate_segments
//! env CUPOOL_FREE=immediate
//! env CUPOOL_BACKING=segments
//! case immediate_pages
//! env CUPOOL_FREE=immediate
//! env CUPOOL_BACKING=pages
//! case sync_segments
//! env CUPOOL_FREE=sync
//! env CUPOOL_BACKING=segments
//! case sync_pages
//! env CUPOOL_FREE=sync
//! env CUPOOL_BACKING=pages
//! case deferred
//! env CUPOOL_BACKING=segments
#define _GNU_SOURCE
#include "host_memory.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "victim.h"

enum { kThreads = 4, kRounds = 15000, kRequests = 4, kBlock_bytes = 2 * MIB, kSlots = 1 << 18 };

static CUcontext g_context;
static struct {
  atomic_ullong address;
  atomic_int holder;
} g_slots[kSlots];
static atomic_long g_twice, g_refused;

static atomic_int* holder_of(CUdeviceptr address) {
  for (size_t i = (address / kBlock_bytes) % kSlots;; i = (i + 1) % kSlots) {
    unsigned long long none = 0;
    if (atomic_load(&g_slots[i].address) == address) return &g_slots[i].holder;
    if (atomic_compare_exchange_strong(&g_slots[i].address, &none, address) || none == address) return &g_slots[i].holder;
  }
}

static void* run(void* number) {
  const int self = (int)(size_t)number;
  MUST(cuCtxSetCurrent(g_context));
  for (int round = 0; round < kRounds; ++round) {
    const CUdeviceptr block = allocate(kBlock_bytes);
    int nobody = 0, mine = self;
    if (!atomic_compare_exchange_strong(holder_of(block), &nobody, self)) ++g_twice;
    sched_yield();
    atomic_compare_exchange_strong(holder_of(block), &mine, 0);
    if (self == 1) fail_host_memory_here((uint64_t)(1 + round % kRequests));
    g_refused += cuMemFree(block) != CUDA_SUCCESS;
    fail_host_memory_here(0);
  }
  return NULL;
}

int main(void) {
  static uint64_t requests;  // counted at the exit too
  g_context = enter_device(0);
  watch_host_memory("libcupool", &requests);
  pthread_t threads[kThreads];
  for (size_t i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, run, (void*)(i + 1));
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  printf("given twice %ld, refused %ld\n", g_twice, g_refused);
  return 0;
}
