/* Stands in for dlsym and hands every call on by a jump, so that glibc still sees who asks. Counts lookups of one name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

typedef void* (*Dlsym)(void*, const char*);
static int plain_lookups;

int jumped_plain_lookups(void) { return plain_lookups; }

__attribute__((visibility("hidden"), used)) Dlsym jump_target(void* handle, const char* name) {
  static Dlsym next;
  (void)handle;
  if (next == NULL) next = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  if (strcmp(name, "plain_lookup") == 0) ++plain_lookups;
  return next;
}

__asm__(
    ".text\n.globl dlsym\n.type dlsym, @function\ndlsym:\n"
    "  push %rdi\n  push %rsi\n  sub $8, %rsp\n  call jump_target\n  add $8, %rsp\n  pop %rsi\n  pop %rdi\n  jmp *%rax\n"
    ".size dlsym, . - dlsym\n");
