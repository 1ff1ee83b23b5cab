// Shared memory the way that UCX and NCCL send it (a handle of the base, and an offset from GetAddressRange) and the way that PyTorch does (a
// handle of the pointer itself), from parent to child and from child to parent; the bytes must be the same ones.
//! pages_of_children
//! check all(r["devices"][0]["counters"]["live_blocks"]["current"] == 0 for r in reports.values())
#include <sys/wait.h>

#include "victim.h"

enum { kBlocks = 3, kBytes = 700000, kOffset = 123456 };

typedef struct Message {
  CUipcMemHandle base, raw;
  size_t offset;
} Message;

static void put(int to, const void* data, size_t bytes) { MUST(write(to, data, bytes) != (ssize_t)bytes); }
static void get(int from, void* data, size_t bytes) { MUST(read(from, data, bytes) != (ssize_t)bytes); }

/* Shares the middle one of several neighbours, from an address inside of it; the other side reads it and writes to it. */
static void share(const char* who, int to, int from, unsigned char mark) {
  CUdeviceptr blocks[kBlocks], base = 0;
  size_t bytes = 0;
  Message message;
  unsigned char back[2] = {0, 0};
  for (int i = 0; i < kBlocks; ++i) {
    blocks[i] = allocate(kBytes);
    MUST(cuMemsetD8(blocks[i], (unsigned char)(mark + i), kBytes));
  }
  CUdeviceptr inside = blocks[1] + kOffset;
  MUST(cuMemGetAddressRange(&base, &bytes, inside));
  printf("%s: offset %zu of %zu\n", who, (size_t)(inside - base), bytes);
  message.offset = inside - base;
  MUST(cuIpcGetMemHandle(&message.base, base));
  printf("%s: handle of an interior address: %d\n", who, cuIpcGetMemHandle(&message.raw, inside));
  MUST(cuIpcGetMemHandle(&message.raw, blocks[2]));
  MUST(cuCtxSynchronize());
  put(to, &message, sizeof message);
  get(from, back, 1);
  MUST(cuMemcpyDtoH(&back[0], inside, 1));
  MUST(cuMemcpyDtoH(&back[1], blocks[2], 1));
  printf("%s: written by the other: %d %d\n", who, back[0], back[1]);
  MUST(cuMemcpyDtoH(&back[0], inside - 1, 1));
  MUST(cuMemcpyDtoH(&back[1], blocks[0] + kBytes - 1, 1));
  printf("%s: left alone: %d %d\n", who, back[0], back[1]);
  for (int i = 0; i < kBlocks; ++i) MUST(cuMemFree(blocks[i]));
  fflush(stdout);
}

static void use(const char* who, int from, int to) {
  Message message;
  CUdeviceptr base = 0, raw = 0;
  unsigned char back[2] = {0, 0};
  get(from, &message, sizeof message);
  MUST(cuIpcOpenMemHandle(&base, message.base, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  MUST(cuIpcOpenMemHandle(&raw, message.raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  MUST(cuMemcpyDtoH(&back[0], base + message.offset, 1));
  MUST(cuMemcpyDtoH(&back[1], raw, 1));
  printf("%s: reads %d %d\n", who, back[0], back[1]);
  MUST(cuMemsetD8(base + message.offset, 200, 1));
  MUST(cuMemsetD8(raw, 201, 1));
  MUST(cuCtxSynchronize());
  SAY(cuIpcCloseMemHandle(raw));
  SAY(cuIpcCloseMemHandle(base));
  fflush(stdout);
  put(to, "x", 1);
}

int main(void) {
  int down[2], up[2];
  MUST(pipe(down));
  MUST(pipe(up));
  pid_t child = fork();
  enter_device(0);
  if (child == 0) {
    use("child", down[0], up[1]);
    share("child", up[1], down[0], 50);
    cuDevicePrimaryCtxRelease(0);
    exit(0);
  }
  share("parent", down[1], up[0], 10);
  use("parent", up[0], down[1]);
  int status = 0;
  waitpid(child, &status, 0);
  printf("child ended with %d\n", WEXITSTATUS(status));
  return WEXITSTATUS(status);
}
