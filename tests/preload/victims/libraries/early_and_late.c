/* See early_and_late.h. The destructor is this object's very last (priority 101 runs after the others). */
#include "early_and_late.h"

#include <stdlib.h>

#include "cusim.h"
#include "victim.h"

static CUdeviceptr first, for_handler, for_destructor;
static uint64_t calls_before;

static void in_handler(void) {
  SAY_AS("atexit", cuMemFree(for_handler));
  calls_before = cusim_total_calls();
}

__attribute__((constructor)) static void before_main(void) {
  atexit(in_handler);
  enter_device(0);
  SAY_AS("constructor", cuMemAlloc(&first, MIB));
}

__attribute__((destructor(101))) static void after_all(void) {
  SAY_AS("destructor", cuMemFree(for_destructor));
  printf("driver calls at the end: %d\n", (int)(cusim_total_calls() - calls_before));
  fflush(stdout);
}

CUdeviceptr early_block(void) { return first; }

void late_block(CUdeviceptr by_handler, CUdeviceptr by_destructor) {
  for_handler = by_handler;
  for_destructor = by_destructor;
}
