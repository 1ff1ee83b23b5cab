// Two processes share blocks by legacy IPC handles, in both ways in which callers compute addresses. What the other process
// finds, and what it writes, must be the block's own bytes, and its neighbours must not change.
//! pages_of_children
//! check len([r for r in reports.values()]) == 1 and c["allocations"] == 4 and c["live_blocks"]["current"] == 0
//! case pointer
//! args pointer
//! case base_and_offset
//! args base
//! case sync
//! args pointer
//! env CUPOOL_FREE=sync
//! case platform
//! args base
//! env CUPOOL_POLICY=platform
//! case native_to_a_bare_process
//! args pointer bare
//! env CUPOOL_IPC=native
//! check c["native_fallbacks"] == 0
#include <sys/wait.h>

#include "victim.h"

enum { kBlocks = 4 };
static const size_t kSizes[kBlocks] = {100000, 3 << 20, 5000, 64 << 10};

typedef struct {
  CUipcMemHandle handle;
  size_t offset;
  size_t bytes;
  unsigned char stamp;
} Offer;

typedef struct {
  int open_code, close_code;
  size_t range_bytes;
  size_t wrong_bytes;
  int type;
} Finding;

static void transfer(int write_it, int file, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t got = write_it ? write(file, (char*)data + done, bytes - done) : read(file, (char*)data + done, bytes - done);
    if (got <= 0) exit(98);
    done += (size_t)got;
  }
}

static size_t count_wrong(CUdeviceptr address, size_t bytes, unsigned char expected) {
  unsigned char* back = malloc(bytes);
  size_t wrong = 0;
  MUST(cuMemcpyDtoH(back, address, bytes));
  for (size_t i = 0; i < bytes; ++i) wrong += back[i] != expected;
  free(back);
  return wrong;
}

static int import_all(int in, int out) {
  enter_device(0);
  for (int i = 0; i < kBlocks; ++i) {
    Offer offer;
    Finding finding = {-1, -1, 0, 0, 0};
    CUdeviceptr opened = 0;
    transfer(0, in, &offer, sizeof offer);
    finding.open_code = cuIpcOpenMemHandle(&opened, offer.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (finding.open_code == 0) {
      CUdeviceptr address = opened + offer.offset;
      CUmemorytype type = 0;
      MUST(cuMemGetAddressRange(NULL, &finding.range_bytes, address));
      MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
      finding.type = (int)type;
      finding.wrong_bytes = count_wrong(address, offer.bytes, offer.stamp);
      MUST(cuMemsetD8(address, (unsigned char)(offer.stamp + 1), offer.bytes));
      MUST(cuCtxSynchronize());
      finding.close_code = cuIpcCloseMemHandle(opened);
    }
    transfer(1, out, &finding, sizeof finding);
  }
  return 0;
}

static void offer_block(int in, int out, CUdeviceptr block, int i, int by_base) {
  Offer offer;
  Finding finding;
  CUdeviceptr base = 0;
  memset(&offer, 0, sizeof offer);
  MUST(cuMemGetAddressRange(&base, NULL, block));
  printf("block %d: export %d", i, cuIpcGetMemHandle(&offer.handle, by_base ? base : block));
  offer.offset = by_base ? block - base : 0;
  offer.bytes = kSizes[i];
  offer.stamp = (unsigned char)(10 * (i + 1));
  transfer(1, out, &offer, sizeof offer);
  transfer(0, in, &finding, sizeof finding);
  printf(", open %d, range %zu, type %d, wrong %zu, close %d, wrong after %zu\n", finding.open_code, finding.range_bytes, finding.type,
         finding.wrong_bytes, finding.close_code, count_wrong(block, kSizes[i], (unsigned char)(offer.stamp + 1)));
}

static void export_all(int in, int out, int by_base) {
  CUdeviceptr blocks[kBlocks];
  enter_device(0);
  for (int i = 0; i < kBlocks; ++i) {
    blocks[i] = allocate(kSizes[i]);
    MUST(cuMemsetD8(blocks[i], (unsigned char)(10 * (i + 1)), kSizes[i]));
  }
  MUST(cuCtxSynchronize());
  for (int i = 0; i < kBlocks; ++i) offer_block(in, out, blocks[i], i, by_base);
  CUipcMemHandle handle;
  memset(&handle, 0, sizeof handle);
  SAY(cuIpcGetMemHandle(&handle, 0x1234));
  SAY(cuIpcGetMemHandle(NULL, blocks[0]));
  for (int i = 0; i < kBlocks; ++i) MUST(cuMemFree(blocks[i]));
}

int main(int argc, char** argv) {
  if (argc == 4 && strcmp(argv[1], "importer") == 0) return import_all(atoi(argv[2]), atoi(argv[3]));
  int to_child[2], to_parent[2], status = 0;
  MUST(pipe(to_child));
  MUST(pipe(to_parent));
  pid_t child = fork();
  if (child == 0) {
    char in[16], out[16];
    snprintf(in, sizeof in, "%d", to_child[0]);
    snprintf(out, sizeof out, "%d", to_parent[1]);
    close(to_child[1]);
    close(to_parent[0]);
    unsetenv("CUSIM_LOG");
    if (argc > 2) unsetenv("LD_PRELOAD");
    execl("/proc/self/exe", argv[0], "importer", in, out, NULL);
    _exit(97);
  }
  close(to_child[0]);
  close(to_parent[1]);
  export_all(to_parent[0], to_child[1], strcmp(argv[1], "base") == 0);
  waitpid(child, &status, 0);
  printf("importer %d\n", WEXITSTATUS(status));
  return 0;
}
