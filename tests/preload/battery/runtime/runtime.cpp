// The transparency battery for the runtime API: the functions that reach a hooked entry point, in the situations that a program of
// the runtime knows. Prints lines like those of the driver's battery (../main.cpp); the last error is part of what holds afterwards.
// Built twice: for the legacy default stream, and for a default stream per thread.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::uintptr_t kUntouched = 0xdead;

enum class Situation { first_call, used, second_device, captured_global, capturing_relaxed, after_reset, kCount };
constexpr const char* kSituations[] = {"first call", "used", "second device", "captured global", "capturing relaxed", "after reset"};

struct World {
  cudaStream_t stream = nullptr;
  cudaStream_t second_stream = nullptr;
  void* block = nullptr;
  void* stream_block = nullptr;
  void* freed = nullptr;
  void* host = nullptr;
  cudaMemPool_t pool = nullptr;
};

class Line {
 public:
  Line& text(const std::string& what, const std::string& value) {
    text_ += (text_.empty() ? "" : " ") + what + "=" + value;
    return *this;
  }
  Line& code(cudaError_t result) { return text("code", std::to_string(result)); }
  Line& number(const std::string& what, std::uint64_t value) { return text(what, std::to_string(value)); }
  Line& address(const std::string& what, const void* value) {
    const auto number = reinterpret_cast<std::uintptr_t>(value);
    return text(what, number == 0 ? "null" : number == kUntouched ? "untouched" : number % 512 == 0 ? "aligned" : "unaligned");
  }
  Line& memory(const std::string& what, const void* given) {
    address(what, given);
    cudaPointerAttributes attributes{};
    if (given == nullptr || reinterpret_cast<std::uintptr_t>(given) == kUntouched) return *this;
    code(cudaPointerGetAttributes(&attributes, given)).number("type", attributes.type).text("device", std::to_string(attributes.device));
    return number("same", attributes.devicePointer == given);
  }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

void* untouched() { return reinterpret_cast<void*>(kUntouched); }

struct Case {
  const char* function;
  std::string name;
  std::function<void(World&, Line&)> body;
};
std::vector<Case> g_cases;
void add(const char* function, std::string name, std::function<void(World&, Line&)> body) {
  g_cases.push_back({function, std::move(name), std::move(body)});
}

struct Address {
  const char* name;
  void* (*of)(const World&);
};
const Address kAddresses[] = {{"null", [](const World&) -> void* { return nullptr; }},
                              {"never allocated", [](const World&) { return reinterpret_cast<void*>(0x1234); }},
                              {"block", [](const World& w) { return w.block; }},
                              {"interior", [](const World& w) -> void* { return w.block != nullptr ? static_cast<char*>(w.block) + 512 : nullptr; }},
                              {"stream block", [](const World& w) { return w.stream_block; }},
                              {"freed", [](const World& w) { return w.freed; }},
                              {"host", [](const World& w) { return w.host; }}};
constexpr std::pair<const char*, std::size_t> kSizes[] = {
    {"0 bytes", 0}, {"1 byte", 1}, {"1 MiB", kMiB}, {"too much", std::size_t{1} << 40}, {"all ones", ~std::size_t{0}}};

void add_allocations() {
  for (const auto& [name, bytes] : kSizes) {
    const auto add_one = [name = name, bytes = bytes](const char* function, auto allocate) {
      add(function, name, [=](World& w, Line& line) {
        void* out = untouched();
        line.code(allocate(w, &out, bytes)).memory("out", out);
      });
      add(function, std::string(name) + ", null output", [=](World& w, Line& line) { line.code(allocate(w, nullptr, bytes)); });
    };
    add_one("cudaMalloc", [](World&, void** out, std::size_t n) { return cudaMalloc(out, n); });
    add_one("cudaMallocAsync", [](World& w, void** out, std::size_t n) { return cudaMallocAsync(out, n, w.stream); });
    add_one("cudaMallocAsync default", [](World&, void** out, std::size_t n) { return cudaMallocAsync(out, n, nullptr); });
    add_one("cudaMallocFromPoolAsync", [](World& w, void** out, std::size_t n) { return cudaMallocFromPoolAsync(out, n, w.pool, w.stream); });
    add_one("cudaMallocManaged", [](World&, void** out, std::size_t n) { return cudaMallocManaged(out, n, cudaMemAttachGlobal); });
    add_one("cudaMallocHost", [](World&, void** out, std::size_t n) { return cudaMallocHost(out, n); });
    add_one("cudaHostAlloc", [](World&, void** out, std::size_t n) { return cudaHostAlloc(out, n, cudaHostAllocPortable); });
    add("cudaMallocPitch", name, [bytes = bytes](World&, Line& line) {
      void* out = untouched();
      std::size_t pitch = kUntouched;
      line.code(cudaMallocPitch(&out, &pitch, bytes, 10)).number("pitch", pitch).memory("out", out).code(cudaMallocPitch(&out, nullptr, bytes, 10));
    });
    add("cudaMalloc3D", name, [bytes = bytes](World&, Line& line) {
      cudaPitchedPtr out{untouched(), kUntouched, kUntouched, kUntouched};
      line.code(cudaMalloc3D(&out, cudaExtent{bytes, 4, 4})).number("pitch", out.pitch).memory("out", out.ptr);
    });
    add("cudaMallocArray", name, [bytes = bytes](World&, Line& line) {
      cudaArray_t out = nullptr;
      const cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindFloat};
      line.code(cudaMallocArray(&out, &format, bytes, 4, 0)).number("made", out != nullptr).code(cudaFreeArray(out));
    });
  }
}

void add_frees() {
  for (const Address& kind : kAddresses) {
    const auto add_one = [&kind](const char* function, auto free_it) {
      add(function, kind.name, [=, &kind](World& w, Line& line) { line.code(free_it(w, kind.of(w))); });
      add(function, std::string(kind.name) + ", twice", [=, &kind](World& w, Line& line) {
        void* const address = kind.of(w);
        line.code(free_it(w, address)).code(free_it(w, address));
      });
    };
    add_one("cudaFree", [](World&, void* address) { return cudaFree(address); });
    add_one("cudaFreeAsync", [](World& w, void* address) { return cudaFreeAsync(address, w.stream); });
    add_one("cudaFreeAsync default", [](World&, void* address) { return cudaFreeAsync(address, nullptr); });
    add_one("cudaFreeHost", [](World&, void* address) { return cudaFreeHost(address); });
    add_one("cudaHostUnregister", [](World&, void* address) { return cudaHostUnregister(address); });
    add_one("cudaIpcCloseMemHandle", [](World&, void* address) { return cudaIpcCloseMemHandle(address); });
    add_one("cudaIpcGetMemHandle", [](World&, void* address) {
      cudaIpcMemHandle_t handle;
      return cudaIpcGetMemHandle(&handle, address);
    });
    add("cudaPointerGetAttributes", kind.name, [&kind](World& w, Line& line) { line.memory("it", kind.of(w)); });
    add("cudaHostRegister", kind.name, [&kind](World& w, Line& line) { line.code(cudaHostRegister(kind.of(w), 4096, 0)); });
    add("cudaMemset", kind.name, [&kind](World& w, Line& line) { line.code(cudaMemset(kind.of(w), 1, 100)); });
  }
}

void add_queries_and_pools() {
  add("cudaMemGetInfo", "both", [](World&, Line& line) {
    std::size_t free_bytes = 0, total_bytes = 0;
    line.code(cudaMemGetInfo(&free_bytes, &total_bytes)).number("total", total_bytes).number("GiB/8", free_bytes >> 27);
  });
  add("cudaMemGetInfo", "nulls", [](World&, Line& line) { line.code(cudaMemGetInfo(nullptr, nullptr)); });
  for (const int attribute : {static_cast<int>(cudaMemPoolAttrReleaseThreshold), static_cast<int>(cudaMemPoolAttrUsedMemCurrent),
                              static_cast<int>(cudaMemPoolAttrUsedMemHigh), 99}) {
    add("cudaMemPoolGetAttribute", std::to_string(attribute), [=](World& w, Line& line) {
      std::uint64_t value = 0;
      line.code(cudaMemPoolGetAttribute(w.pool, static_cast<cudaMemPoolAttr>(attribute), &value)).number("value", value);
      line.code(cudaMemPoolSetAttribute(w.pool, static_cast<cudaMemPoolAttr>(attribute), &value));
      line.code(cudaMemPoolGetAttribute(nullptr, static_cast<cudaMemPoolAttr>(attribute), &value));
    });
  }
  add("cudaMemPoolTrimTo", "0", [](World& w, Line& line) { line.code(cudaMemPoolTrimTo(w.pool, 0)).memory("block", w.stream_block); });
  add("cudaDeviceSetMemPool", "pool", [](World& w, Line& line) { line.code(cudaDeviceSetMemPool(0, w.pool)).code(cudaDeviceSetMemPool(9, w.pool)); });
  add("cudaDeviceReset", "and after", [](World& w, Line& line) {
    void* out = untouched();
    line.code(cudaDeviceReset()).code(cudaMalloc(&out, kMiB)).memory("out", out).code(cudaFree(out)).memory("block", w.block);
  });
  add("cudaDeviceEnablePeerAccess", "other", [](World&, Line& line) {
    int device = 0;
    line.code(cudaGetDevice(&device));
    for (int peer : {1 - device, device, 9}) {
      line.code(cudaDeviceEnablePeerAccess(peer, 0))
          .code(cudaDeviceEnablePeerAccess(peer, 0))
          .code(cudaDeviceDisablePeerAccess(peer))
          .code(cudaDeviceDisablePeerAccess(peer));
    }
  });
  add("cudaStreamCreate", "and destroy", [](World&, Line& line) {
    cudaStream_t out = nullptr;
    line.code(cudaStreamCreate(&out)).code(cudaStreamDestroy(out)).code(cudaStreamDestroy(nullptr)).code(cudaStreamCreate(nullptr));
  });
  add("cudaStreamBeginCapture", "with memory", [](World& w, Line& line) {
    cudaGraph_t graph = nullptr;
    void* out = untouched();
    line.code(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeRelaxed)).code(cudaMallocAsync(&out, kMiB, w.stream)).address("out", out);
    line.code(cudaFreeAsync(out, w.stream)).code(cudaStreamEndCapture(w.stream, &graph)).number("graph", graph != nullptr);
  });
}

void must(cudaError_t result, int line) {
  if (result == cudaSuccess) return;
  std::printf("battery line %d: %d\n", line, static_cast<int>(result));
  std::fflush(stdout);
  _exit(99);
}
#define MUST(call) must(call, __LINE__)

void enter(World& w, Situation situation) {
  if (situation == Situation::first_call) return;
  MUST(cudaSetDevice(situation == Situation::second_device ? 1 : 0));
  if (situation == Situation::after_reset) MUST(cudaDeviceReset());
  MUST(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
  MUST(cudaStreamCreateWithFlags(&w.second_stream, cudaStreamNonBlocking));
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = situation == Situation::second_device ? 1 : 0;
  MUST(cudaMemPoolCreate(&w.pool, &properties));
  MUST(cudaMalloc(&w.block, kMiB));
  MUST(cudaMallocAsync(&w.stream_block, kMiB, w.stream));
  MUST(cudaMallocHost(&w.host, kMiB));
  MUST(cudaMalloc(&w.freed, kMiB));
  MUST(cudaFree(w.freed));
  MUST(cudaDeviceSynchronize());
  if (situation == Situation::captured_global) MUST(cudaStreamBeginCapture(w.second_stream, cudaStreamCaptureModeGlobal));
  if (situation == Situation::capturing_relaxed) MUST(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeRelaxed));
}

void leave(const World& w) {
  cudaGraph_t graph = nullptr;
  for (cudaStream_t stream : {w.stream, w.second_stream}) {
    if (stream != nullptr) static_cast<void>(cudaStreamEndCapture(stream, &graph));
  }
  static_cast<void>(cudaMemPoolDestroy(w.pool));
  for (int device : {1, 0}) {
    static_cast<void>(cudaSetDevice(device));
    static_cast<void>(cudaDeviceReset());
  }
  static_cast<void>(cudaGetLastError());
}

/// The runtime opens the driver with its first call, for itself.
std::size_t violations() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return driver != nullptr ? reinterpret_cast<std::size_t (*)()>(dlsym(driver, "cusim_violation_count"))() : 0;
}

void run(const Case& one, Situation situation) {
  World world;
  enter(world, situation);
  Line line;
  const std::size_t before = violations();
  one.body(world, line);
  const std::size_t noted = violations() - before;
  cudaStreamCaptureStatus statuses[2] = {};
  const cudaError_t last = cudaGetLastError();
  for (int i = 0; i < 2 && world.stream != nullptr; ++i)
    static_cast<void>(cudaStreamIsCapturing(i == 0 ? world.stream : world.second_stream, &statuses[i]));
  std::printf("%s | %s | %s | %s | last=%d captures=%d,%d, | %zu\n", one.function, kSituations[static_cast<int>(situation)], one.name.c_str(),
              line.str().c_str(), last, statuses[0], statuses[1], noted);
  leave(world);
}

/// In a process of its own: what a first call is shows only there, and what one case breaks stays there.
int in_child(const std::function<void()>& job) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    job();
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) std::printf("a case ended with status %#x\n", status);
  return status != 0 ? 1 : 0;
}

}  // namespace

int main() {
  add_allocations();
  add_frees();
  add_queries_and_pools();
  int failed = 0;
  for (const Case& one : g_cases) failed += in_child([&] { run(one, Situation::first_call); });
  for (int i = 1; i < static_cast<int>(Situation::kCount); ++i) {
    failed += in_child([&] {
      for (const Case& one : g_cases) run(one, static_cast<Situation>(i));
    });
  }
  return failed != 0 ? 1 : 0;
}
