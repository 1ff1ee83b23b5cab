// Eight threads allocate, write, verify and free at once; every byte is checked, so an overlap of two blocks shows.
//! check c["allocations"] == 8 * 400 and c["frees"] == 8 * 400 and c["live_bytes"]["current"] == 0
//! check c["failed_allocations"] == 0 and c["native_fallbacks"] == 0
#include <pthread.h>

#include "victim.h"

enum { kRounds = 400, kHeld = 8, kLargest = 200000 };

typedef struct {
  CUcontext context;
  unsigned number;
  long mismatches;
} Worker;

typedef struct {
  CUdeviceptr address;
  size_t bytes;
  unsigned char stamp;
} Block;

static long verify(const Block* block) {
  static _Thread_local unsigned char back[kLargest];
  long wrong = 0;
  MUST(cuMemcpyDtoH(back, block->address, block->bytes));
  for (size_t i = 0; i < block->bytes; ++i) wrong += back[i] != block->stamp;
  return wrong;
}

static void* work(void* argument) {
  Worker* self = argument;
  unsigned seed = self->number;
  Block held[kHeld] = {{0, 0, 0}};
  MUST(cuCtxSetCurrent(self->context));
  for (int round = 0; round < kRounds + kHeld; ++round) {
    Block* block = &held[round % kHeld];
    if (block->address != 0) {
      self->mismatches += verify(block);
      MUST(cuMemFree(block->address));
    }
    block->address = 0;
    if (round >= kRounds) continue;
    block->bytes = 1 + (unsigned)rand_r(&seed) % (rand_r(&seed) % 4 == 0 ? kLargest : 3000);
    block->stamp = (unsigned char)(self->number * 31 + (unsigned)round);
    block->address = allocate(block->bytes);
    MUST(cuMemsetD8(block->address, block->stamp, block->bytes));
  }
  return NULL;
}

int main(void) {
  Worker workers[8];
  pthread_t threads[8];
  CUcontext context = enter_device(0);
  long mismatches = 0;
  for (unsigned i = 0; i < 8; ++i) {
    workers[i] = (Worker){context, i + 1, 0};
    pthread_create(&threads[i], NULL, work, &workers[i]);
  }
  for (int i = 0; i < 8; ++i) {
    pthread_join(threads[i], NULL);
    mismatches += workers[i].mismatches;
  }
  printf("mismatched bytes %ld\n", mismatches);
  return mismatches != 0;
}
