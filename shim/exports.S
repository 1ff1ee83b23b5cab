/* The exported symbols. Each entry point is a jump through its slot, so that bodies and signatures stay in C++
 * (shim/hooks.cpp fills the slots with functions of the types in <cuda.h>). dlsym must hand every lookup that is not
 * ours to the real one by a tail jump, registers and return address untouched: glibc finds the caller of RTLD_NEXT
 * from the return address (LLVM OpenMP's ompt_start_tool loops forever otherwise). Never: a frame of its own on the
 * pass-through path. x86-64 System V.
 *
 * Entry points can be patched in memory, as UCX does to learn of frees: it overwrites the first 5 or 12 bytes with a jump and runs
 * the instructions that stood there elsewhere, and knows only those of a usual prologue (src/ucm/bistro/bistro_x86_64.c: no
 * endbr64, no jmp). Where it fails it goes without its registration caches. So an entry begins with 15 bytes that do nothing
 * and can be moved; like libcuda's own functions it has no endbr64.
 */
#ifndef __x86_64__
#error "cupool's dlsym and trampolines are written for x86-64 only"
#endif

        .text

#define HOOK(name, symbol, since, role, method) \
        .p2align 5;                             \
        .globl symbol;                          \
        .type symbol, @function;                \
symbol: .cfi_startproc;                         \
        movl $0, %eax;                          \
        movl $0, %eax;                          \
        movl $0, %eax;                          \
        jmp *cupool_slot_##symbol(%rip);        \
        .cfi_endproc;                           \
        .size symbol, . - symbol;
#include "shim/entry_points.def"
#undef HOOK

        /* void* dlsym(void* handle, const char* name) */
        /* Under both versions that glibc has it: whoever stands in for dlsym in front of us finds the next one by dlvsym, which passes by
         * what has not exactly that version. */
        .p2align 4
        .globl cupool_dlsym_2_2_5, cupool_dlsym_2_34
        .type cupool_dlsym_2_2_5, @function
        .type cupool_dlsym_2_34, @function
        .symver cupool_dlsym_2_2_5, dlsym@GLIBC_2.2.5, remove
        .symver cupool_dlsym_2_34, dlsym@@GLIBC_2.34, remove
cupool_dlsym_2_2_5:
cupool_dlsym_2_34:
        .cfi_startproc
        endbr64
        testq   %rsi, %rsi
        je      .Lpass
        cmpb    $'c', (%rsi)
        jne     .Lpass
        cmpb    $'u', 1(%rsi)
        jne     .Lpass
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        movq    24(%rsp), %rdx                  /* who asks */
        call    cupool_decide_dlsym             /* -> rax: the answer, rdx: is there one */
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testb   %dl, %dl                        /* a bool: the ABI says nothing of the other bits */
        je      .Lpass
        ret
.Lpass:
        movq    cupool_next_dlsym(%rip), %rax
        testq   %rax, %rax
        je      .Lresolve
        movq    (%rsp), %rdx                    /* does the next dlsym itself ask us? It took us for the real one: no circles */
        cmpq    cupool_next_begin(%rip), %rdx
        jb      .Lnext
        cmpq    cupool_next_end(%rip), %rdx
        jae     .Lnext
        movq    cupool_real_dlsym(%rip), %rax
.Lnext:
        jmp     *%rax
.Lresolve:                                      /* first call, possibly before any constructor has run */
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    cupool_resolve_dlsym            /* stores what is read above, returns what to ask */
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        jmp     *%rax
        .cfi_endproc
        .size cupool_dlsym_2_2_5, . - cupool_dlsym_2_2_5
        .size cupool_dlsym_2_34, . - cupool_dlsym_2_34

        .section .note.GNU-stack, "", @progbits
/* Calls and returns are paired: the object may claim SHSTK (not IBT: see above). */
        .section .note.gnu.property, "a"
        .p2align 3
        .long   4, 16, 5
        .asciz  "GNU"
        .long   0xc0000002, 4, 2, 0
