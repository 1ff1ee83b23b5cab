/* Host memory that runs out: the nth request of a library for it fails, and those after it if so many are to. For one source file of a program.
 *
 * malloc, its family and mmap stand before libc's in the order of symbols, whoever calls them. A request is the library's when the call comes from
 * its code; what it asks for by way of libc itself (a file, a thread) is not counted. */
#ifndef HOST_MEMORY_H
#define HOST_MEMORY_H
#ifndef _GNU_SOURCE
#error "_GNU_SOURCE, before the first header"
#endif
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define SHOWN __attribute__((visibility("default")))

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

static uintptr_t g_code_begin, g_code_end; /* of the library */
static uint64_t g_own_requests;
static uint64_t* g_requests = &g_own_requests;
static uint64_t g_first_to_fail = UINT64_MAX, g_last_to_fail;
static void* (*g_mmap)(void*, size_t, int, int, int, off_t);

static int look_at_library(struct dl_phdr_info* info, size_t bytes, void* name) {
  (void)bytes;
  if (strstr(info->dlpi_name, name) == NULL) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0) continue;
    g_code_begin = info->dlpi_addr + part->p_vaddr;
    g_code_end = g_code_begin + part->p_memsz;
  }
  return 1;
}

/* `library`: part of its file's name. `requests`: where they are counted. */
static inline void watch_host_memory(const char* library, uint64_t* requests) {
  g_requests = requests;
  *(void**)&g_mmap = dlsym(RTLD_NEXT, "mmap");
  dl_iterate_phdr(look_at_library, (void*)library);
}

/* The nth request from the beginning, and times - 1 after it. */
static inline void fail_host_memory(uint64_t nth, uint64_t times) {
  g_first_to_fail = nth;
  g_last_to_fail = nth + times - 1;
}

/* The nth request from now on that is made in this thread. */
static __thread uint64_t t_until_failure;
static inline void fail_host_memory_here(uint64_t nth) { t_until_failure = nth; }

static bool host_memory_fails(const void* caller) {
  const uintptr_t address = (uintptr_t)caller;
  if (address < g_code_begin || address >= g_code_end) return false;
  const uint64_t request = __atomic_add_fetch(g_requests, 1, __ATOMIC_RELAXED);
  const bool fails_here = t_until_failure != 0 && --t_until_failure == 0;
  if (!fails_here && (request < g_first_to_fail || request > g_last_to_fail)) return false;
  errno = ENOMEM;
  return true;
}
#define FAILS() host_memory_fails(__builtin_return_address(0))

SHOWN void* malloc(size_t bytes) { return FAILS() ? NULL : __libc_malloc(bytes); }
SHOWN void* calloc(size_t count, size_t bytes) { return FAILS() ? NULL : __libc_calloc(count, bytes); }
SHOWN void* realloc(void* memory, size_t bytes) { return FAILS() ? NULL : __libc_realloc(memory, bytes); }
SHOWN void* aligned_alloc(size_t alignment, size_t bytes) { return FAILS() ? NULL : __libc_memalign(alignment, bytes); }

SHOWN int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = FAILS() ? NULL : __libc_memalign(alignment, bytes);
  return *memory != NULL ? 0 : ENOMEM;
}

SHOWN void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (FAILS()) return MAP_FAILED;
  if (g_mmap == NULL) *(void**)&g_mmap = dlsym(RTLD_NEXT, "mmap");
  return g_mmap(address, bytes, protection, flags, file, offset);
}
#endif
