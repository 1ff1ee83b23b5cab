// sim/libcuda.so.1 as a program meets it: loaded at run time. One part per run, exit code 0 when it holds.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

namespace {

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%d: not so: %s\n", __LINE__, #condition); \
      std::exit(1);                                                   \
    }                                                                 \
  } while (false)

void* library() {
  void* handle = dlopen(CUSIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  EXPECT(handle != nullptr);
  return handle;
}

/// Every row of exports.def is exported, and nothing that is not named cu*.
void exports() {
  void* handle = library();
  std::ifstream def(CUSIM_EXPORTS);
  std::size_t rows = 0;
  for (std::string line; std::getline(def, line);) {
    if (line.rfind("EXPORT(", 0) != 0 && line.rfind("LOUD", 0) != 0) continue;
    const std::size_t comma = line.find(',');
    std::istringstream rest(line.substr(comma + 1));
    std::string symbol;
    rest >> symbol;
    symbol.pop_back();
    if (dlsym(handle, symbol.c_str()) == nullptr) std::fprintf(stderr, "missing: %s\n", symbol.c_str());
    EXPECT(dlsym(handle, symbol.c_str()) != nullptr);
    // As in the real library, an address has its function's name.
    Dl_info info{};
    EXPECT(dladdr(dlsym(handle, symbol.c_str()), &info) != 0 && info.dli_sname != nullptr && symbol == info.dli_sname);
    ++rows;
  }
  EXPECT(rows > 600);
  EXPECT(dlsym(handle, "cusim_advance_ns") != nullptr);
}

const std::string& log_path() {
  static const std::string path = "/tmp/cusim-probe-" + std::to_string(getpid()) + ".json";
  return path;
}

/// A child that uses the driver and exits leaves its log, with calls, violations and what is still allocated.
void log() {
  const pid_t child = fork();
  if (child == 0) {
    setenv("CUSIM_LOG", ("/tmp/cusim-probe-" + std::to_string(getppid()) + ".json").c_str(), 1);
    void* handle = library();
    auto* init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(handle, "cuInit"));
    auto* retain = reinterpret_cast<CUresult (*)(CUcontext*, CUdevice)>(dlsym(handle, "cuDevicePrimaryCtxRetain"));
    auto* set = reinterpret_cast<CUresult (*)(CUcontext)>(dlsym(handle, "cuCtxSetCurrent"));
    auto* allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t)>(dlsym(handle, "cuMemAlloc_v2"));
    auto* release = reinterpret_cast<CUresult (*)(CUdeviceptr)>(dlsym(handle, "cuMemFree_v2"));
    CUcontext context = nullptr;
    CUdeviceptr address = 0;
    EXPECT(init(0) == CUDA_SUCCESS && retain(&context, 0) == CUDA_SUCCESS && set(context) == CUDA_SUCCESS);
    EXPECT(allocate(&address, 4096) == CUDA_SUCCESS);
    EXPECT(release(address + 1) == CUDA_ERROR_INVALID_VALUE);
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::ifstream file(log_path());
  std::stringstream text;
  text << file.rdbuf();
  unlink(log_path().c_str());
  EXPECT(text.str().find("\"cuMemAlloc_v2\": 1") != std::string::npos);
  EXPECT(text.str().find("cuMemFree_v2 of an address that is not") != std::string::npos);
  EXPECT(text.str().find("{\"used_bytes\": 2097152, \"allocations\": 1}") != std::string::npos);
}

CUresult (*late_call)(int*) = nullptr;

void call_late(int times) {
  int count = 0;
  for (int i = 0; times < 0 || i < times; ++i) late_call(&count);
}

/// Threads that go on calling after the end, faster than a log could be written: the log ends all the same, and says how many.
void storm() {
  const pid_t child = fork();
  if (child == 0) {
    setenv("CUSIM_LOG", ("/tmp/cusim-probe-" + std::to_string(getppid()) + ".json").c_str(), 1);
    std::atexit([] { call_late(5000); });
    void* handle = library();
    auto* init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(handle, "cuInit"));
    late_call = reinterpret_cast<CUresult (*)(int*)>(dlsym(handle, "cuDeviceGetCount"));
    EXPECT(init(0) == CUDA_SUCCESS);
    for (int i = 0; i < 2; ++i) std::thread(call_late, -1).detach();
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::ifstream file(log_path());
  std::stringstream text;
  text << file.rdbuf();
  unlink(log_path().c_str());
  EXPECT(text.str().find(" violations more\"]") != std::string::npos);
  EXPECT(text.str().size() < 200'000);
}

/// What runs after the driver's exit handler is answered DEINITIALIZED.
void deinitialised() {
  std::atexit([] {
    int count = 0;
    if (late_call(&count) != CUDA_ERROR_DEINITIALIZED) _exit(1);
  });
  void* handle = library();
  auto* init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(handle, "cuInit"));
  late_call = reinterpret_cast<CUresult (*)(int*)>(dlsym(handle, "cuDeviceGetCount"));
  EXPECT(init(0) == CUDA_SUCCESS);
  int count = 0;
  EXPECT(late_call(&count) == CUDA_SUCCESS);
}

/// A child that inherits a used driver cannot use it; one that inherits an unused one can.
void forked() {
  void* handle = library();
  auto* init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(handle, "cuInit"));
  std::function<CUresult()> in_child = [&] { return init(0); };
  const auto child_code = [&] {
    const pid_t child = fork();
    if (child == 0) _exit(in_child());
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT(child_code() == CUDA_SUCCESS);
  EXPECT(init(0) == CUDA_SUCCESS);
  EXPECT(child_code() == CUDA_ERROR_NOT_INITIALIZED);
  // Of an event that is done the child is told so.
  auto* retain = reinterpret_cast<CUresult (*)(CUcontext*, CUdevice)>(dlsym(handle, "cuDevicePrimaryCtxRetain"));
  auto* make_current = reinterpret_cast<CUresult (*)(CUcontext)>(dlsym(handle, "cuCtxSetCurrent"));
  auto* create = reinterpret_cast<CUresult (*)(CUevent*, unsigned)>(dlsym(handle, "cuEventCreate"));
  auto* record = reinterpret_cast<CUresult (*)(CUevent, CUstream)>(dlsym(handle, "cuEventRecord"));
  auto* query = reinterpret_cast<CUresult (*)(CUevent)>(dlsym(handle, "cuEventQuery"));
  auto* spin = reinterpret_cast<CUresult (*)(CUstream, unsigned long)>(dlsym(handle, "cusim_launch_spin"));
  CUcontext context = nullptr;
  CUevent done = nullptr, pending = nullptr;
  EXPECT(retain(&context, 0) == CUDA_SUCCESS && make_current(context) == CUDA_SUCCESS);
  EXPECT(create(&done, 0) == CUDA_SUCCESS && create(&pending, 0) == CUDA_SUCCESS);
  EXPECT(record(done, nullptr) == CUDA_SUCCESS && spin(nullptr, 1000) == CUDA_SUCCESS && record(pending, nullptr) == CUDA_SUCCESS);
  in_child = [&] { return query(done); };
  EXPECT(child_code() == CUDA_SUCCESS);
  in_child = [&] { return query(pending); };
  EXPECT(child_code() == CUDA_ERROR_NOT_INITIALIZED);
}

/// An old driver has no newer functions, by either way of looking them up; both ways agree on what there is.
void old_driver() {
  setenv("CUSIM_DRIVER_VERSION", "11040", 1);
  void* handle = library();
  EXPECT(dlsym(handle, "cuCtxRecordEvent") == nullptr);
  EXPECT(dlsym(handle, "cuGetProcAddress_v2") == nullptr);
  EXPECT(dlsym(handle, "cuCtxCreate_v3") != nullptr);
  auto* look_up = reinterpret_cast<CUresult (*)(const char*, void**, int, cuuint64_t)>(dlsym(handle, "cuGetProcAddress"));
  void* found = nullptr;
  EXPECT(look_up("cuMemAlloc", &found, 11040, 0) == CUDA_SUCCESS);
  EXPECT(found != nullptr && found == dlsym(handle, "cuMemAlloc_v2"));
  EXPECT(look_up("cuCtxRecordEvent", &found, 11040, 0) == CUDA_ERROR_NOT_FOUND && found == nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "exports") exports();
  if (part == "log") log();
  if (part == "storm") storm();
  if (part == "deinitialised") deinitialised();
  if (part == "forked") forked();
  if (part == "old_driver") old_driver();
  return 0;
}
