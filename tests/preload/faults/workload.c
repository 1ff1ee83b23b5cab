/* The full workload, and the loop that runs it once per fault.
 *
 * Reads a fault per line ("symbol:nth:code[:times]" as in CUSIM_FAIL; "-" for none), runs the workload in a forked child, which ends by
 * exit(), and prints one line of what became of it; with "symbols" the symbols of the positions instead. The parent never calls CUDA.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/wait.h>

#include "calls.h"
#include "host_memory.h"

enum { kDeadline_s = 60 };

static void start(struct World* world) {
  int number = 0;
  size_t bytes = 0;
  CUuuid uuid;
  char name[64];
  bool ready = OK(DO(true, cuInit, 0));
  ready = OK(DO(!ready, cuInit, 0)) || ready;
  DO(ready, cuDriverGetVersion, &number);
  DO(ready, cuDeviceGetCount, &number);
  for (int i = 0; i < 2; ++i) {
    if (!OK(DO(ready, cuDeviceGet, &world->devices[i], i))) world->devices[i] = i;
  }
  DO(ready, cuDeviceGetName, name, (int)sizeof name, world->devices[0]);
  DO(ready, cuDeviceGetUuid, &uuid, world->devices[0]);
  DO(ready, cuDeviceGetAttribute, &number, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, world->devices[0]);
  DO(ready, cuDeviceTotalMem, &bytes, world->devices[0]);
  CUcontext primary = NULL;
  bool has_primary = OK(DO(ready, cuDevicePrimaryCtxRetain, &primary, world->devices[0]));
  has_primary = OK(DO(ready && !has_primary, cuDevicePrimaryCtxRetain, &primary, world->devices[0])) || has_primary;
  world->contexts[0] = has_primary ? primary : NULL;
  enter(world);
  DO(has_primary, cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 4096);
  DO(has_primary, cuCtxGetLimit, &bytes, CU_LIMIT_STACK_SIZE);
  if (!OK(DO(has_primary, cuStreamCreate, &world->blocking, 0))) world->blocking = NULL;
  if (!OK(DO(has_primary, cuStreamCreateWithPriority, &world->other, CU_STREAM_NON_BLOCKING, 0))) world->other = NULL;
  if (!OK(DO(has_primary, cuModuleLoadData, &world->module, "no code"))) world->module = NULL;
}

/* Everything is freed: what is idle goes back when the program asks for it, at the second time of asking at the latest. */
static void give_all_back(struct World* world) {
  CUmemoryPool pool = NULL;
  const bool ready = world->contexts[0] != NULL;
  DO(ready, cuCtxSynchronize);
  END(world->module != NULL, cuModuleUnload, world->module);
  for (int i = 0; i < 2; ++i) {
    const bool has_pool = OK(DO(ready, cuDeviceGetDefaultMemPool, &pool, world->devices[0]));
    DO(has_pool, cuMemPoolTrimTo, pool, 0);
  }
  END(ready, cuDeviceGraphMemTrim, 0); /* the first time (captures()) a graph may still have been running: not every free waits for it */
  for (int i = 0; i < 2; ++i) g_outcome->used_freed[i] = cusim_used_bytes(i);
}

static void end(struct World* world) {
  END(world->blocking != NULL, cuStreamDestroy, world->blocking);
  END(world->other != NULL, cuStreamDestroy, world->other);
  END_CONTEXT(world->contexts[0] != NULL, cuDevicePrimaryCtxRelease, world->devices[0]);
  lose_all();
  for (int i = 0; i < 2; ++i) g_outcome->used_ended[i] = cusim_used_bytes(i);
}

/* Whatever has happened, a device whose contexts have ended can be used again. */
static void live_again(struct World* world) {
  CUcontext primary = NULL;
  const bool ready = world->contexts[0] != NULL;
  const bool has_primary = OK(DO(ready, cuDevicePrimaryCtxRetain, &primary, world->devices[0]));
  const bool is_current = OK(DO(has_primary, cuCtxSetCurrent, primary));
  const struct Block block = take(is_current, kPlain, 1 << 20, NULL, NULL);
  g_outcome->second_life = block.address != 0;
  give(block, kPlain, NULL);
  DO(is_current, cuCtxSynchronize);
  END_CONTEXT(has_primary, cuDevicePrimaryCtxReset, world->devices[0]);
}

static void run_workload(void) {
  static struct World world;
  start(&world);
  plain_memory(&world);
  stream_ordered(&world);
  kept_on_streams(&world);
  memory_pools(&world);
  captures(&world);
  shared_memory(&world);
  outside_memory(&world);
  second_context(&world);
  green_context(&world);
  second_device(&world);
  full_device(&world);
  full_streams(&world);
  give_all_back(&world);
  end(&world);
  live_again(&world);
  g_outcome->mismatched = cusim_mismatched_bytes();
}

static void be_the_child(char* fault) {
  close(STDIN_FILENO); /* exit() would move the place in the file that parent and child share */
  if (strcmp(fault, "-") != 0) {
    g_watched = strdup(fault);
    *strchr(g_watched, ':') = '\0';
    g_nth = strtoull(strchr(fault, ':') + 1, NULL, 10);
    const bool is_host = strcmp(g_watched, HOST_MEMORY) == 0;
    if (is_host) fail_host_memory(g_nth, strtoull(strrchr(fault, ':') + 1, NULL, 10));
    else cusim_configure("FAIL", fault);
  }
  cusim_reset();
  alarm(kDeadline_s);
  be_virtual(true);
  run_workload();
  be_virtual(false);
  exit(0);
}

/* status pid hit overlaps mismatched unended uncertain kept allocated second_life host_requests used_freed*2 used_ended*2 | codes | reached the driver */
static void print_outcome(pid_t child, int status) {
  const struct Outcome* o = g_outcome;
  printf("%d %d %d %llu %llu %llu %llu %llu %llu %llu %llu", status, (int)child, (int)o->hit, (unsigned long long)o->overlaps,
         (unsigned long long)o->mismatched, (unsigned long long)o->unended, (unsigned long long)o->uncertain, (unsigned long long)o->kept,
         (unsigned long long)o->allocated, (unsigned long long)o->second_life, (unsigned long long)o->host_requests);
  for (int i = 0; i < 2; ++i) printf(" %llu", (unsigned long long)o->used_freed[i]);
  for (int i = 0; i < 2; ++i) printf(" %llu", (unsigned long long)o->used_ended[i]);
  printf(" |");
  for (uint32_t i = 0; i < o->count; ++i) printf(" %d", (int)o->positions[i].code);
  printf(" |");
  for (uint32_t i = 0; i < o->count; ++i) putchar(o->positions[i].reached_driver ? '1' : '0');
  putchar('\n');
}

static void print_symbols(void) {
  for (uint32_t i = 0; i < g_outcome->count; ++i)
    printf("%s%s%s", i ? " " : "", g_outcome->positions[i].symbol, g_outcome->positions[i].is_full ? "*" : "");
  putchar('\n');
}

int main(void) {
  char line[4096];
  g_outcome = mmap(NULL, sizeof *g_outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (g_outcome == MAP_FAILED) return 1;
  watch_host_memory("libcupool", &g_outcome->host_requests);
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line, "symbols") == 0) {
      print_symbols();
    } else {
      memset(g_outcome, 0, sizeof *g_outcome);
      g_outcome->hit = -1;
      const pid_t child = fork();
      if (child == 0) be_the_child(line);
      int status = 0;
      if (child < 0 || waitpid(child, &status, 0) != child) return 1;
      print_outcome(child, status);
    }
    fflush(stdout);
  }
  return 0;
}
