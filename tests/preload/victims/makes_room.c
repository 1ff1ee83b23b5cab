// What the driver itself takes from the device (code, contexts, graphs) does not fail because the pool keeps the memory: natively a free has
// given it back, so the pool gives it back when the driver is short of it, and the call is made again.
//! check c["live_blocks"]["current"] == 0 and c["failed_allocations"] == 0 and ooms == []
//! env CUSIM_MEMORY=64MiB
//! env CUSIM_CONTEXT_BYTES=4MiB
//! case module
//! args module
//! case module_from_a_file
//! args file
//! case library
//! args library
//! case context
//! args context
//! case context_of_opengl
//! args opengl
//! case context_of_vdpau
//! args vdpau
//! case context_on_another_thread
//! args thread
//! case graph_launch
//! args graph
//! case graph_upload
//! args upload
//! case while_work_is_pending
//! args pending
//! case preallocated
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_PREALLOCATE=60MiB
//! args module
//! case while_another_stream_captures
//! args capture
//! case while_another_stream_captures_on_segments
//! env CUPOOL_BACKING=segments
//! args capture
//! case while_another_stream_captures_and_work_is_pending
//! args capture_pending
//! case stream
//! native skip
//! env CUSIM_FAIL=cuStreamCreate:1:2
//! args stream
//! check "cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING): 0" in out and calls("cuStreamCreate") >= 2
//! case variable_of_a_module
//! env CUSIM_VARIABLE_BYTES=30MiB
//! args variable
//! case variable_of_a_library
//! env CUSIM_VARIABLE_BYTES=30MiB
//! args variable library
//! case nothing_to_give
//! args full
//! stderr cupool\[<pid>\]: warning: cuModuleLoadData: the driver has not enough memory on GPU 0 for it \(0 MiB free\); the pool has 60 MiB, .*
//! check any("cuModuleLoadData" in line for line in report["data_quality"]["warnings"])
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "victim.h"

/* As cudaGL.h and cudaVDPAU.h declare them, which want other headers. */
CUresult cuGLCtxCreate_v2(CUcontext*, unsigned, CUdevice);
CUresult cuVDPAUCtxCreate_v2(CUcontext*, unsigned, CUdevice, unsigned, void*);

typedef CUresult (*Spin)(CUstream, unsigned long long);
enum { kBlocks = 14 };
static CUdeviceptr g_blocks[kBlocks];

/* As much as there is, in pieces of 4 MiB: `keep` of them stay. */
static void fill_and_free(int keep) {
  int count = 0;
  while (count < kBlocks && cuMemAlloc(&g_blocks[count], 4 * MIB) == CUDA_SUCCESS) ++count;
  printf("blocks: %d\n", count);
  for (int i = keep; i < count; ++i) MUST(cuMemFree(g_blocks[i]));
}

static void* create_context_there(void* unused) {
  CUcontext created = NULL;
  (void)unused;
  SAY(create_context(&created, 0, 0));
  SAY(cuCtxDestroy(created));
  return NULL;
}

static void use_graph(int uploads) {
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CUdeviceptr inside = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  MUST(cuMemAllocAsync(&inside, 32 * MIB, stream));
  MUST(cuMemsetD8Async(inside, 1, 32 * MIB, stream));
  MUST(cuMemFreeAsync(inside, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  fill_and_free(0);
  if (uploads) SAY(cuGraphUpload(exec, stream));
  SAY(cuGraphLaunch(exec, stream));
  SAY(cuStreamSynchronize(stream));
  SAY(cuGraphExecDestroy(exec));
  SAY(cuGraphDestroy(graph));
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "module";
  CUmodule module = NULL;
  CUcontext primary = enter_device(0);
  if (strcmp(what, "graph") == 0 || strcmp(what, "upload") == 0) {
    use_graph(strcmp(what, "upload") == 0);
    return 0;
  }
  if (strcmp(what, "pending") == 0) {
    Spin spin = (Spin)dlsym(RTLD_DEFAULT, "cusim_launch_spin");
    MUST(spin(NULL, 1000000));
  }
  if (strncmp(what, "capture", 7) == 0) { /* kernels that are first used in a capture are loaded there */
    CUstream stream;
    CUgraph graph;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (strcmp(what, "capture_pending") == 0) {
      Spin spin = (Spin)dlsym(RTLD_DEFAULT, "cusim_launch_spin");
      MUST(spin(NULL, 1000000));
    }
    fill_and_free(0);
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < 20; ++i) SAY(cuModuleLoadData(&module, "image"));
    SAY(cuStreamEndCapture(stream, &graph));
    SAY(cuGraphDestroy(graph));
    return 0;
  }
  if (strcmp(what, "variable") == 0) { /* loaded while there was room; its variables take their memory when they are asked for */
    CUlibrary library = NULL;
    CUdeviceptr variable = 0;
    size_t bytes = 0;
    MUST(cuModuleLoadData(&module, "image"));
    MUST(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    fill_and_free(0);
    if (argc > 2) SAY(cuLibraryGetGlobal(&variable, &bytes, library, "weights"));
    else SAY(cuModuleGetGlobal(&variable, &bytes, module, "weights"));
    printf("%zu MiB\n", bytes / MIB);
    SAY(cuMemsetD8(variable, 1, bytes));
    return 0;
  }
  fill_and_free(strcmp(what, "full") == 0 ? kBlocks : 0);
  CUdeviceptr rest[2] = {0, 0};
  if (strcmp(what, "full") == 0) { /* the last 4 MiB: then really nothing is left */
    SAY(cuMemAlloc(&rest[0], 4 * MIB));
    SAY(cuModuleLoadData(&module, "image"));
    SAY(cuMemFree(rest[0]));
    SAY(cuModuleLoadData(&module, "image"));
    for (int i = 0; i < kBlocks; ++i) MUST(cuMemFree(g_blocks[i]));
    return 0;
  }
  if (strcmp(what, "module") == 0 || strcmp(what, "pending") == 0) {
    for (int i = 0; i < 20; ++i) SAY(cuModuleLoadData(&module, "image"));
  } else if (strcmp(what, "file") == 0) {
    for (int i = 0; i < 20; ++i) SAY(cuModuleLoad(&module, "/proc/self/exe"));
  } else if (strcmp(what, "library") == 0) {
    CUlibrary library = NULL;
    for (int i = 0; i < 20; ++i) SAY(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
  } else if (strcmp(what, "context") == 0) {
    CUcontext created = NULL;
    for (int i = 0; i < 5; ++i) SAY(create_context(&created, 0, 0));
    MUST(cuCtxSetCurrent(primary));
  } else if (strcmp(what, "opengl") == 0 || strcmp(what, "vdpau") == 0) {
    CUcontext created[5];
    CUdeviceptr block = 0;
    for (int i = 0; i < 5; ++i) {
      if (strcmp(what, "opengl") == 0) SAY(cuGLCtxCreate_v2(&created[i], 0, 0));
      else SAY(cuVDPAUCtxCreate_v2(&created[i], 0, 0, 1, NULL));
      SAY(cuMemAlloc(&block, 4 * MIB));
    }
    for (int i = 0; i < 5; ++i) SAY(cuCtxDestroy(created[i]));
    MUST(cuCtxSetCurrent(primary));
  } else if (strcmp(what, "thread") == 0) {
    pthread_t thread;
    pthread_create(&thread, NULL, create_context_there, NULL);
    pthread_join(thread, NULL);
  } else if (strcmp(what, "stream") == 0) {
    CUstream stream = NULL;
    SAY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  return 0;
}
