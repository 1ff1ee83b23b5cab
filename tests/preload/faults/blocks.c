/* Positions, and blocks with known bytes in them. Kernels of the simulated driver write and check those: no fault can hit them. */
#include "calls.h"

struct Outcome* g_outcome;
char* g_watched;
uint64_t g_nth;

CUresult cuMemAllocAsync_ptsz(CUdeviceptr*, size_t, CUstream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);

enum { kBlocks = 512, kChecked = 4096, kWork_ns = 2000 };

static struct Block g_blocks[kBlocks];
static uint64_t g_calls_before;
static uint64_t g_watched_before;

static uint64_t count_watched(void) {
  if (g_watched == NULL) return 0;
  return strcmp(g_watched, HOST_MEMORY) == 0 ? g_outcome->host_requests : cusim_calls(g_watched);
}

uint32_t begin_call(const char* symbol, bool is_full) {
  const uint32_t position = g_outcome->count++;
  if (position >= kPositions) abort();
  g_outcome->positions[position] = (struct Position){symbol, kUnfinished, is_full, false};
  g_calls_before = cusim_calls(symbol);
  g_watched_before = count_watched();
  return position;
}

CUresult end_call(uint32_t position, CUresult code) {
  struct Position* one = &g_outcome->positions[position];
  one->code = (int32_t)code;
  one->reached_driver = cusim_calls(one->symbol) != g_calls_before;
  if (g_watched != NULL && g_outcome->hit < 0 && g_watched_before < g_nth && count_watched() >= g_nth) g_outcome->hit = (int32_t)position;
  return code;
}

bool is_about_earlier_work(CUresult code) {
  return code == CUDA_ERROR_ILLEGAL_ADDRESS || code == CUDA_ERROR_LAUNCH_FAILED || code == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
         code == CUDA_ERROR_DEINITIALIZED;
}

static size_t checked_bytes(size_t bytes) { return bytes < kChecked ? bytes : kChecked; }

/* Both ends of a large block, all of a small one. */
static void touch(struct Block block, CUstream stream, bool is_check, uint64_t duration_ns) {
  const size_t bytes = checked_bytes(block.bytes);
  CUresult (*kernel)(CUstream, CUdeviceptr, size_t, uint8_t, uint64_t) = is_check ? cusim_launch_check : cusim_launch_fill;
  kernel(stream, block.address, bytes, block.value, duration_ns);
  if (bytes < block.bytes) kernel(stream, block.address + block.bytes - bytes, bytes, block.value, duration_ns);
}

static struct Block note_block(CUdeviceptr address, size_t bytes, CUstream stream, bool is_ordered) {
  static uint8_t next_value;
  struct Block block = {address, bytes, (uint8_t)(next_value++ % 251 + 1), stream, is_ordered};
  int place = -1;
  ++g_outcome->allocated;
  for (int i = 0; i < kBlocks; ++i) {
    if (g_blocks[i].address == 0) place = i;
    else if (address < g_blocks[i].address + g_blocks[i].bytes && g_blocks[i].address < address + bytes) ++g_outcome->overlaps;
  }
  if (place < 0) abort();
  g_blocks[place] = block;
  touch(block, stream, false, kWork_ns);
  return block;
}

void use(struct Block* block, CUstream stream, uint64_t duration_ns) {
  if (block->address == 0) return;
  block->stream = stream;
  touch(*block, stream, false, duration_ns); /* nothing orders the two streams: written again, and then looked at */
  touch(*block, stream, true, duration_ns);
}

struct Block take(bool ready, enum Way way, size_t bytes, CUstream stream, CUmemoryPool pool) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CUresult code = CUDA_ERROR_UNKNOWN;
  switch (way) {
    case kPlain: code = DO(ready, cuMemAlloc, &address, bytes); break;
    case kPitch:
      code = DO(ready, cuMemAllocPitch, &address, &pitch, bytes / 16, 16, 4);
      bytes = pitch * 16;
      break;
    case kOrdered: code = DO(ready, cuMemAllocAsync, &address, bytes, stream); break;
    case kOrderedPerThread: code = DO(ready, cuMemAllocAsync_ptsz, &address, bytes, stream); break;
    case kFromPool: code = DO(ready && pool != NULL, cuMemAllocFromPoolAsync, &address, bytes, pool, stream); break;
  }
  const CUstream user = way == kOrderedPerThread && stream == NULL ? CU_STREAM_PER_THREAD : stream;
  return OK(code) ? note_block(address, bytes, user, way != kPlain && way != kPitch) : (struct Block){0};
}

struct Block take_full(bool ready, size_t bytes) {
  cusim_advance_ns(kLong_ns); /* a pool waits at most a second for work that it learnt of late, and the virtual GPU must move meanwhile */
  CUdeviceptr address = 0;
  return OK(DO_FULL(ready, cuMemAlloc, &address, bytes)) ? note_block(address, bytes, NULL, false) : (struct Block){0};
}

struct Block take_full_on(bool ready, size_t bytes, CUstream stream) {
  cusim_advance_ns(kWritten_ns);
  CUdeviceptr address = 0;
  return OK(DO_FULL(ready, cuMemAllocAsync, &address, bytes, stream)) ? note_block(address, bytes, stream, true) : (struct Block){0};
}

static CUresult free_once(bool ready, CUdeviceptr address, enum Way way, CUstream stream) {
  if (way == kOrdered || way == kFromPool) return DO(ready, cuMemFreeAsync, address, stream);
  if (way == kOrderedPerThread) return DO(ready, cuMemFreeAsync_ptsz, address, stream);
  return DO(ready, cuMemFree, address);
}

void check(struct Block block) {
  if (block.address != 0) touch(block, block.stream, true, kWork_ns);
}

/* The free comes with work pending: a check in the block's stream that runs when the block is no longer the program's. */
void give(struct Block block, enum Way way, CUstream stream) {
  check(block);
  give_checked(block, way, stream);
}

void give_checked(struct Block block, enum Way way, CUstream stream) {
  if (block.is_ordered && (way == kPlain || way == kPitch)) cusim_advance_ns(kLong_ns); /* but for a free that does not wait */
  const CUresult first = free_once(block.address != 0, block.address, way, stream);
  const bool again = block.address != 0 && !OK(first) && !is_about_earlier_work(first);
  const CUresult second = free_once(again, block.address, way, stream);
  if (block.address == 0) return;
  const bool is_uncertain = is_about_earlier_work(first) || (again && is_about_earlier_work(second));
  const bool is_kept = !is_uncertain && again && !OK(second);
  if (is_uncertain || is_kept)
    cusim_advance_ns(kLong_ns); /* such a free has waited for nothing: what still looks at the block is this program's to wait for */
  g_outcome->uncertain += is_uncertain;
  g_outcome->kept += is_kept;
  if (!is_kept) lose(block);
}

void lose(struct Block block) {
  for (int i = 0; i < kBlocks; ++i)
    if (g_blocks[i].address == block.address) g_blocks[i].address = 0;
}

void lose_all(void) { memset(g_blocks, 0, sizeof g_blocks); }
