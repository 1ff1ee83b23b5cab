/* A libcuda.so.1 that is a loader, as WSL's: it opens libcuda.so.1.1 beside it at the first call, and every function jumps to the one there. What
 * cuGetProcAddress then gives lies in libcuda.so.1.1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOUD EXPORT
#define EXPORT(base, symbol, since, stream) __attribute__((visibility("hidden"))) void* slot_##symbol;
#include "tests/sim/exports.def"
#undef EXPORT

__attribute__((visibility("hidden"), used)) void fill_slots(void) {
  Dl_info own;
  char path[4096];
  if (dladdr(&slot_cuInit, &own) == 0 || strlen(own.dli_fname) + 3 > sizeof path) abort();
  snprintf(path, sizeof path, "%s.1", own.dli_fname);
  void* const driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (driver == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    abort();
  }
#define EXPORT(base, symbol, since, stream) slot_##symbol = dlsym(driver, #symbol);
#include "tests/sim/exports.def"
#undef EXPORT
}

#define EXPORT(base, symbol, since, stream)                                             \
  __asm__(".text\n.globl " #symbol "\n.type " #symbol ",@function\n" #symbol            \
          ":\n"                                                                         \
          "mov slot_" #symbol                                                           \
          "(%rip), %r11\ntest %r11, %r11\njne 1f\n"                                     \
          "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\npush %rax\n" \
          "call fill_slots\n"                                                           \
          "pop %rax\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\n"        \
          "mov slot_" #symbol "(%rip), %r11\n1: jmp *%r11\n.size " #symbol ", . - " #symbol "\n");
#include "tests/sim/exports.def"
