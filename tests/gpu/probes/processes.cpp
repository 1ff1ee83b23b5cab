// What the driver answers in a forked child, and which call is the first to hear that the process is ending. The exit
// handlers answer for themselves, in the order in which they run; gpu-check keeps that order.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/gpu/probes/probe.hpp"

namespace probe {
namespace {

CUdeviceptr g_block = 0;
CUevent g_event = nullptr;
bool g_asked = false;

void ask_everything(const std::string& when) {
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  std::size_t free_bytes = 0, total_bytes = 0;
  int number = 0;
  answer(when + ": cuDeviceGetCount", CU(cuDeviceGetCount)(&number));
  answer(when + ": cuCtxGetCurrent", CU(cuCtxGetCurrent)(&context));
  answer(when + ": cuMemGetInfo", CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
  answer(when + ": cuEventQuery", CU(cuEventQuery)(g_event));
  answer(when + ": cuMemAlloc", CU(cuMemAlloc_v2)(&address, 4096));
  answer(when + ": cuMemFree", CU(cuMemFree_v2)(g_block));
}

void at_exit_registered_first() {
  if (g_asked) ask_everything("exit handler registered before cuInit");
}

void at_exit_registered_last() { ask_everything("exit handler registered after the first allocation"); }

/// Constructed before main, so its destructor runs after every handler that main registered.
struct BeforeMain {
  BeforeMain() { std::atexit(at_exit_registered_first); }
  ~BeforeMain() {
    if (g_asked) ask_everything("destructor of a global");
  }
} g_before_main;

__attribute__((destructor)) void in_fini() {
  if (g_asked) ask_everything("destructor function of the program");
}

void prepare_state() {
  prepare(CU(cuMemAlloc_v2)(&g_block, 1 << 20), "cuMemAlloc");
  prepare(CU(cuEventCreate)(&g_event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  prepare(CU(cuEventRecord)(g_event, nullptr), "cuEventRecord");
  prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
}

void ask_in_child() {
  constexpr unsigned kPatience_s = 20;
  alarm(kPatience_s);  // a driver that waits for a lock of the parent's ends here
  const CUresult init = CU(cuInit)(0);
  answer("forked child: cuInit", init, CUDA_ERROR_NOT_INITIALIZED);
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  int number = 0;
  answer("forked child: cuDeviceGetCount", CU(cuDeviceGetCount)(&number), CUDA_ERROR_NOT_INITIALIZED);
  answer("forked child: cuCtxGetCurrent", CU(cuCtxGetCurrent)(&context), CUDA_ERROR_NOT_INITIALIZED);
  answer("forked child: cuMemAlloc", CU(cuMemAlloc_v2)(&address, 4096), CUDA_ERROR_NOT_INITIALIZED);
  answer("forked child: cuEventQuery", CU(cuEventQuery)(g_event), CUDA_SUCCESS);
  answer("forked child: cuMemFree of the parent's block", CU(cuMemFree_v2)(g_block), CUDA_ERROR_NOT_INITIALIZED);
}

}  // namespace

void ask_fork(Session&) {
  prepare_state();
  const pid_t child = fork();
  if (child == 0) {
    group("forked child", ask_in_child);
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) throw Unprepared("no child");
  answer("forked child: ended by signal (0: none)", WIFSIGNALED(status) ? WTERMSIG(status) : 0, 0);
  answer("after the child: the parent's cuMemFree", CU(cuMemFree_v2)(g_block), CUDA_SUCCESS);
}

void ask_exit(Session&) {
  prepare_state();
  g_asked = true;
  std::atexit(at_exit_registered_last);
  answer("main returns", "next come the exit handlers, in the order of these answers");
}

}  // namespace probe
