/* One process of an IPC test: an unmodified program that does what the lines on its stdin say and answers each with one
 * line on stdout. It knows nothing of cupool; agents.py starts it with and without the library.
 *
 *   alloc BYTES            -> code address           fill ADDRESS BYTES VALUE   -> code
 *   free ADDRESS           -> code                   read ADDRESS BYTES         -> code value|mixed
 *   export ADDRESS         -> code handle            range ADDRESS              -> code base bytes
 *   open HANDLE FLAGS      -> code address           attributes ADDRESS         -> code start bytes buffer-id sync-memops
 *   open1 HANDLE FLAGS     -> the first version      memops ADDRESS 0|1         -> code
 *   close ADDRESS          -> code                   launch ADDRESS BYTES VALUE -> code (a kernel that fills, later)
 *   context new|destroy|primary|none -> code         fork_child                 -> exit status of a child that ends at once
 *   capture begin|relaxed|end -> code (relaxed: the thread too)      calls SYMBOL -> count
 *   nowhere HANDLE, export_nowhere ADDRESS, memops_nothing ADDRESS -> code of an open, an export and a setting where the pointer is NULL
 *   close_files_above_900  -> 0 (closes what it does not know)                  quit: ends normally
 *   rounds HANDLE VALUE    -> failures (four threads open it, look at its first byte and close it, many times)
 *   close_race HANDLE BYTES -> failures (opened twice, written to, and closed by two threads at once: the writing is over then; many times)
 *   at_exit ADDRESS        -> 0 (closes it when the process ends, later than the library's own exit handler)
 */
#include <cuda.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cusim.h"

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);
#undef cuIpcOpenMemHandle
CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags);

static CUcontext g_primary;
static CUcontext g_created;
static CUstream g_stream;
static CUdeviceptr g_close_at_exit;

static void close_at_exit(void) {
  if (g_close_at_exit != 0 && cuIpcCloseMemHandle(g_close_at_exit) != CUDA_SUCCESS) _exit(98);
}

static void answer_address(CUresult code, CUdeviceptr address) { printf("%d %" PRIu64 "\n", (int)code, (uint64_t)address); }

static void do_read(CUdeviceptr address, size_t bytes) {
  unsigned char* seen = malloc(bytes);
  const CUresult code = cuMemcpyDtoH(seen, address, bytes);
  size_t same = 1;
  while (code == CUDA_SUCCESS && same < bytes && seen[same] == seen[0]) ++same;
  if (code != CUDA_SUCCESS || same < bytes) printf("%d mixed\n", (int)code);
  else printf("0 %d\n", (int)seen[0]);
  free(seen);
}

static void do_export(CUdeviceptr address) {
  CUipcMemHandle handle;
  memset(&handle, 0, sizeof handle);
  printf("%d ", (int)cuIpcGetMemHandle(&handle, address));
  for (size_t i = 0; i < sizeof handle; ++i) printf("%02x", (unsigned)((const unsigned char*)&handle)[i]);
  printf("\n");
}

static CUipcMemHandle handle_of(const char* hex) {
  CUipcMemHandle handle;
  for (size_t i = 0; i < sizeof handle; ++i) {
    unsigned byte = 0;
    sscanf(hex + 2 * i, "%2x", &byte);
    ((unsigned char*)&handle)[i] = (unsigned char)byte;
  }
  return handle;
}

static void do_open(const char* hex, unsigned flags, int is_first_version) {
  const CUipcMemHandle handle = handle_of(hex);
  CUdeviceptr address = 0;
  const CUresult code = is_first_version ? cuIpcOpenMemHandle(&address, handle, flags) : cuIpcOpenMemHandle_v2(&address, handle, flags);
  answer_address(code, address);
}

static void do_attributes(CUdeviceptr address) {
  CUdeviceptr start = 0;
  size_t bytes = 0;
  unsigned long long id = 0;
  unsigned memops = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&start, &bytes, &id};
  CUresult code = cuPointerGetAttribute(&memops, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
  if (code == CUDA_SUCCESS) code = cuPointerGetAttributes(3, names, values, address);
  printf("%d %" PRIu64 " %zu %llu %u\n", (int)code, (uint64_t)start, bytes, id, memops);
}

static CUresult do_context(const char* what) {
  if (strcmp(what, "new") == 0) return cuCtxCreate_v2(&g_created, 0, 0);
  if (strcmp(what, "destroy") == 0) return cuCtxDestroy(g_created);
  return cuCtxSetCurrent(strcmp(what, "none") == 0 ? NULL : g_primary);
}

static CUresult do_capture(const char* what) {
  CUgraph graph = NULL;
  if (g_stream == NULL && cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;
  if (strcmp(what, "begin") == 0) return cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureMode mode = strcmp(what, "relaxed") == 0 ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;
  if (strcmp(what, "relaxed") == 0) return cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  const CUresult code = cuStreamEndCapture(g_stream, &graph);
  if (graph != NULL) cuGraphDestroy(graph);
  return code;
}

struct Rounds {
  CUipcMemHandle handle;
  unsigned char value;
};

static void* go_round(void* argument) {
  const struct Rounds* rounds = argument;
  intptr_t failures = cuCtxSetCurrent(g_primary) != CUDA_SUCCESS;
  for (int i = 0; i < 300; ++i) {
    CUdeviceptr address = 0;
    unsigned char seen = 0;
    if (cuIpcOpenMemHandle_v2(&address, rounds->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) ++failures;
    else if (cuMemcpyDtoH(&seen, address, 1) != CUDA_SUCCESS || seen != rounds->value || cuIpcCloseMemHandle(address) != CUDA_SUCCESS) ++failures;
  }
  return (void*)failures;
}

static int do_rounds(const char* hex, unsigned value) {
  struct Rounds rounds = {handle_of(hex), (unsigned char)value};
  pthread_t threads[4];
  intptr_t failures = 0;
  for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, &go_round, &rounds);
  for (int i = 0; i < 4; ++i) {
    void* result = NULL;
    pthread_join(threads[i], &result);
    failures += (intptr_t)result;
  }
  return (int)failures;
}

static CUdeviceptr g_racing;
static pthread_barrier_t g_start;

static void* close_racing(void* unused) {
  intptr_t failures = cuCtxSetCurrent(g_primary) != CUDA_SUCCESS;
  pthread_barrier_wait(&g_start);
  failures += cuIpcCloseMemHandle(g_racing) != CUDA_SUCCESS;
  return unused == NULL ? (void*)failures : NULL;
}

static int do_close_race(const char* hex, size_t bytes) {
  intptr_t failures = 0;
  pthread_barrier_init(&g_start, NULL, 2);
  for (int i = 0; i < 300; ++i) {
    pthread_t threads[2];
    for (int open = 0; open < 2; ++open)
      failures += cuIpcOpenMemHandle_v2(&g_racing, handle_of(hex), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS;
    failures += cusim_launch_fill(NULL, g_racing, bytes, 1, 1000000) != CUDA_SUCCESS;
    for (int thread = 0; thread < 2; ++thread) pthread_create(&threads[thread], NULL, &close_racing, NULL);
    for (int thread = 0; thread < 2; ++thread) {
      void* result = NULL;
      pthread_join(threads[thread], &result);
      failures += (intptr_t)result;
    }
    failures += cuStreamQuery(NULL) != CUDA_SUCCESS;
  }
  return (int)failures;
}

static int do_fork(void) {
  int status = -1;
  const pid_t child = fork();
  if (child == 0) exit(7);
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int obey(char* line) {
  char word[32] = "";
  char text[160] = "";
  uint64_t a = 0, b = 0, c = 0;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  sscanf(line, "%31s %159s", word, text);
  sscanf(line, "%*s %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c);
  if (strcmp(word, "alloc") == 0) {
    const CUresult code = cuMemAlloc(&address, a);
    answer_address(code, address);
  } else if (strcmp(word, "free") == 0) printf("%d\n", (int)cuMemFree(a));
  else if (strcmp(word, "fill") == 0) {
    CUresult code = cuMemsetD8(a, (unsigned char)c, b);
    if (code == CUDA_SUCCESS) code = cuCtxSynchronize();
    printf("%d\n", (int)code);
  } else if (strcmp(word, "launch") == 0) printf("%d\n", (int)cusim_launch_fill(NULL, a, b, (uint8_t)c, 1000000));
  else if (strcmp(word, "read") == 0) do_read(a, b);
  else if (strcmp(word, "export") == 0) do_export(a);
  else if (strcmp(word, "export_nowhere") == 0) printf("%d\n", (int)cuIpcGetMemHandle(NULL, a));
  else if (strcmp(word, "nowhere") == 0) printf("%d\n", (int)cuIpcOpenMemHandle_v2(NULL, handle_of(text), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  else if (strcmp(word, "memops_nothing") == 0) printf("%d\n", (int)cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a));
  else if (strncmp(word, "open", 4) == 0) {
    unsigned flags = 0;
    sscanf(line, "%*s %*s %u", &flags);
    do_open(text, flags, word[4] == '1');
  } else if (strcmp(word, "close") == 0) printf("%d\n", (int)cuIpcCloseMemHandle(a));
  else if (strcmp(word, "range") == 0) {
    const CUresult code = cuMemGetAddressRange(&address, &bytes, a);
    printf("%d %" PRIu64 " %zu\n", (int)code, (uint64_t)address, bytes);
  } else if (strcmp(word, "attributes") == 0) do_attributes(a);
  else if (strcmp(word, "memops") == 0) {
    unsigned on = (unsigned)b;
    printf("%d\n", (int)cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a));
  } else if (strcmp(word, "context") == 0) printf("%d\n", (int)do_context(text));
  else if (strcmp(word, "capture") == 0) printf("%d\n", (int)do_capture(text));
  else if (strcmp(word, "calls") == 0) printf("%" PRIu64 "\n", cusim_calls(text));
  else if (strcmp(word, "rounds") == 0) {
    unsigned value = 0;
    sscanf(line, "%*s %*s %u", &value);
    printf("%d\n", do_rounds(text, value));
  } else if (strcmp(word, "close_race") == 0) {
    size_t size = 0;
    sscanf(line, "%*s %*s %zu", &size);
    printf("%d\n", do_close_race(text, size));
  } else if (strcmp(word, "at_exit") == 0) {
    g_close_at_exit = a;
    printf("0\n");
  } else if (strcmp(word, "fork_child") == 0) printf("%d\n", do_fork());
  else if (strcmp(word, "close_files_above_900") == 0) {
    for (int file = 900; file < 4096; ++file) close(file);
    printf("0\n");
  } else return 0;
  return 1;
}

int main(void) {
  char line[512];
  atexit(&close_at_exit); /* before the driver's first call, so that it runs late */
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&g_primary, 0) != CUDA_SUCCESS || cuCtxSetCurrent(g_primary) != CUDA_SUCCESS) return 99;
  setvbuf(stdout, NULL, _IOLBF, 0);
  while (fgets(line, sizeof line, stdin) != NULL && obey(line)) fflush(stdout);
  return 0;
}
