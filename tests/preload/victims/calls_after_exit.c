// From the moment exit begins, we make no driver call: the last handler to run counts what the driver saw since the first.
//! check c["allocations"] == 50
#include "cusim.h"
#include "victim.h"

static uint64_t at_first;

static void first_to_run(void) { at_first = cusim_total_calls(); }
static void last_to_run(void) { printf("driver calls while exiting: %d\n", (int)(cusim_total_calls() - at_first)); }

int main(void) {
  atexit(last_to_run);
  enter_device(0);
  for (int i = 0; i < 50; ++i) MUST(cuMemFree(allocate((size_t)(i + 1) * MIB)));
  atexit(first_to_run);
  return 0;
}
