// The driver's handle, JSON lines, and the pieces that every probe starts from. Lines go out with write(2), unbuffered.
#include "tests/gpu/probes/probe.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace probe {
namespace {

void* driver_handle() {
  static void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return handle;
}

void write_line(const std::string& line) {
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = write(STDOUT_FILENO, line.data() + done, line.size() - done);
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

}  // namespace

void* find_symbol(const char* name) {
  void* handle = driver_handle();
  if (handle == nullptr) throw Missing("libcuda.so.1 cannot be loaded");
  return dlsym(handle, name);
}

std::string error_name(CUresult code) {
  const char* text = nullptr;
  auto* name_of = reinterpret_cast<decltype(&::cuGetErrorName)>(find_symbol("cuGetErrorName"));
  if (name_of != nullptr && name_of(code, &text) == CUDA_SUCCESS && text != nullptr) return text;
  // After its end the driver names nothing any more.
  if (code == CUDA_SUCCESS) return "CUDA_SUCCESS";
  if (code == CUDA_ERROR_DEINITIALIZED) return "CUDA_ERROR_DEINITIALIZED";
  if (code == CUDA_ERROR_NOT_INITIALIZED) return "CUDA_ERROR_NOT_INITIALIZED";
  return "error " + std::to_string(static_cast<int>(code));
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') {
      result += '\\';
      result += character;
    } else if (static_cast<unsigned char>(character) < 0x20) {
      result += ' ';
    } else {
      result += character;
    }
  }
  return result + "\"";
}

void answer(std::string_view question, const Json& value) {
  write_line("{\"question\": " + quoted(question) + ", \"answer\": " + value.text() + "}\n");
}

void answer(std::string_view question, const Json& value, const Json& assumed) {
  write_line("{\"question\": " + quoted(question) + ", \"answer\": " + value.text() + ", \"assumed\": " + assumed.text() + "}\n");
}

void leave_out(std::string_view question, std::string_view reason) {
  write_line("{\"question\": " + quoted(question) + ", \"left_out\": " + quoted(reason) + "}\n");
}

void prepare(CUresult code, const char* step) {
  if (code != CUDA_SUCCESS) throw Unprepared(std::string(step) + " answered " + error_name(code));
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  prepare(CU(cuMemGetInfo_v2)(&free, &total), "cuMemGetInfo");
  return free;
}

void ask_elsewhere(const char* probe_name) {
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "gpu_probe", probe_name, static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || (WIFEXITED(status) && WEXITSTATUS(status) != 0)) {
    return leave_out(probe_name, "the process of its own did not run");
  }
  answer(std::string(probe_name) + ": the process is ended by signal (0: none)", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

Session::Session() {
  prepare(CU(cuInit)(0), "cuInit");
  prepare(CU(cuDeviceGet)(&device, 0), "cuDeviceGet");
  prepare(CU(cuDevicePrimaryCtxRetain)(&context, device), "cuDevicePrimaryCtxRetain");
  prepare(CU(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
}

Memory::Memory(std::size_t bytes) { prepare(CU(cuMemAlloc_v2)(&address_, bytes), "cuMemAlloc"); }

Memory::~Memory() {
  if (address_ != 0) static_cast<void>(CU(cuMemFree_v2)(address_));
}

}  // namespace probe
