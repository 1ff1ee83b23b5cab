/* Patches the driver's functions in memory, as UCX's ucm does by default on x86-64 (src/ucm/bistro): finds each by RTLD_NEXT, else
 * RTLD_DEFAULT; moves the instructions that it overwrites to a page of its own, of which it understands only those of a usual
 * prologue; writes a jump to its hook, 5 bytes near or 12 bytes far. Linked with the driver, loaded RTLD_LOCAL, like ucm's module. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "patcher.h"

struct patcher_counts patcher_seen;

typedef CUresult (*Allocate)(CUdeviceptr*, size_t);
typedef CUresult (*Free)(CUdeviceptr);
typedef CUresult (*AllocateAsync)(CUdeviceptr*, size_t, CUstream);
typedef CUresult (*FreeAsync)(CUdeviceptr, CUstream);
static void* originals[4];

static void note_allocation(CUresult result, CUdeviceptr address, size_t bytes) {
  if (result != CUDA_SUCCESS) return;
  ++patcher_seen.allocations;
  patcher_seen.last_address = address;
  patcher_seen.last_bytes = bytes;
}

/* ucm asks the driver, through its own import, how long the block is that goes. */
static void note_free(CUdeviceptr address) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (address == 0) return;
  ++patcher_seen.frees;
  if (cuMemGetAddressRange(&base, &bytes, address) == CUDA_SUCCESS && base == address) ++patcher_seen.known_frees;
  patcher_seen.last_freed_bytes = bytes;
}

static CUresult on_allocate(CUdeviceptr* out, size_t bytes) {
  CUresult result = ((Allocate)originals[0])(out, bytes);
  note_allocation(result, result == CUDA_SUCCESS ? *out : 0, bytes);
  return result;
}
static CUresult on_free(CUdeviceptr address) {
  note_free(address);
  return ((Free)originals[1])(address);
}
static CUresult on_allocate_async(CUdeviceptr* out, size_t bytes, CUstream stream) {
  CUresult result = ((AllocateAsync)originals[2])(out, bytes, stream);
  note_allocation(result, result == CUDA_SUCCESS ? *out : 0, bytes);
  return result;
}
static CUresult on_free_async(CUdeviceptr address, CUstream stream) {
  note_free(address);
  return ((FreeAsync)originals[3])(address, stream);
}

/* Length of an instruction that may run elsewhere unchanged; 0: not understood. The strict set is UCX's; the loose one adds what
 * compilers put first in the simulated driver. */
static size_t movable_length(const uint8_t* code, int is_loose) {
  const uint8_t rex = (code[0] & 0xF0) == 0x40 ? code[0] : 0;
  const uint8_t* at = code + (rex != 0);
  const uint8_t opcode = *at++;
  if ((rex == 0 || rex == 0x41) && (opcode & 0xF0) == 0x50) return (size_t)(at - code); /* push, pop */
  if (rex == 0x48 && opcode == 0x81 && *at == 0xEC) return (size_t)(at + 5 - code);     /* sub $imm32, %rsp */
  if (rex == 0x48 && opcode == 0x89 && *at == 0xE5) return (size_t)(at + 1 - code);     /* mov %rsp, %rbp */
  if (rex == 0 && (opcode & 0xF8) == 0xB8) return (size_t)(at + 4 - code);              /* mov $imm32, %reg */
  if (!is_loose) return 0;
  if (rex == 0x48 && opcode == 0x83 && *at == 0xEC) return (size_t)(at + 2 - code);      /* sub $imm8, %rsp */
  if ((opcode == 0x89 || opcode == 0x31) && *at >= 0xC0) return (size_t)(at + 1 - code); /* mov, xor between registers */
  if (rex == 0 && opcode == 0xF3 && memcmp(at, "\x0F\x1E\xFA", 3) == 0) return 4;        /* endbr64 */
  return 0;
}

/* The moved instructions and a jump back behind them; NULL: not understood. */
static uint8_t* move_code(const uint8_t* code, size_t least, int is_loose) {
  size_t length = 0;
  while (length < least) {
    const size_t one = movable_length(code + length, is_loose);
    if (one == 0) return NULL;
    length += one;
  }
  uint8_t* moved = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (moved == MAP_FAILED) return NULL;
  const uint64_t back = (uint64_t)(uintptr_t)(code + length);
  memcpy(moved, code, length);
  memcpy(moved + length, "\xFF\x25\0\0\0\0", 6); /* jmp *0(%rip) */
  memcpy(moved + length + 6, &back, sizeof back);
  return moved;
}

static int64_t near_distance(const uint8_t* code, const void* hook) { return (const uint8_t*)hook - (code + 5); }

static int write_jump(uint8_t* code, void* hook, int is_far) {
  const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
  uint8_t* page = (uint8_t*)((uintptr_t)code & ~(page_bytes - 1));
  if (mprotect(page, 2 * page_bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return -1;
  if (!is_far) {
    const int32_t near = (int32_t)near_distance(code, hook);
    code[0] = 0xE9;
    memcpy(code + 1, &near, sizeof near);
  } else {
    memcpy(code, "\x48\xB8", 2); /* movabs $hook, %rax; jmp *%rax */
    memcpy(code + 2, &hook, sizeof hook);
    memcpy(code + 10, "\xFF\xE0", 2);
  }
  return mprotect(page, 2 * page_bytes, PROT_READ | PROT_EXEC);
}

static void* find(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  return found != NULL ? found : dlsym(RTLD_DEFAULT, name);
}

int patcher_install(void* (*find_elsewhere)(const char*), int is_far, const char** object) {
  static const char* const names[4] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync"};
  void* const hooks[4] = {(void*)on_allocate, (void*)on_free, (void*)on_allocate_async, (void*)on_free_async};
  int patched = 0;
  for (int i = 0; i < 4; ++i) {
    Dl_info info = {0};
    uint8_t* code = find_elsewhere != NULL ? find_elsewhere(names[i]) : find(names[i]);
    if (code == NULL || dladdr(code, &info) == 0) continue;
    *object = strrchr(info.dli_fname, '/') + 1;
    const int64_t distance = near_distance(code, hooks[i]);
    const int must_be_far = is_far || distance > INT32_MAX || distance < INT32_MIN;
    if ((originals[i] = move_code(code, must_be_far ? 12 : 5, find_elsewhere != NULL)) == NULL) continue;
    patched += write_jump(code, hooks[i], must_be_far) == 0;
  }
  return patched;
}
