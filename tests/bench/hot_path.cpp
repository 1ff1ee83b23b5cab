// hot_path: what one allocate-and-free pair costs, by size and by number of threads. It takes whichever driver
// libcuda.so.1 is, with or without a preload, or (--mimalloc) the host allocator mimalloc as a yardstick: the driver
// script hot_path.py runs all of them in turn. Prints one JSON line per measurement. No assertion about time.
//
// Pool hits are measured: each thread keeps a set of live blocks and replaces one after the other, round by round;
// the first rounds are not counted. Frees are part of the pair, so what they defer is paid here.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kRounds = 15;
constexpr int kWarmUpRounds = 3;
constexpr std::size_t kPairsPerRound = 20'000;
constexpr std::size_t kLiveBlocks = 256;

/// The allocator under test, in one shape.
struct Allocator {
  std::string name;
  std::uintptr_t (*allocate)(std::size_t bytes);
  void (*release)(std::uintptr_t address);
  void (*enter_thread)();
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "hot_path: %s\n", what.c_str());
  std::exit(1);
}

template <class Function>
Function* find(void* library, const char* name) {
  auto* const function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) die(std::string(name) + " not found");
  return function;
}

namespace driver {
decltype(&cuMemAlloc_v2) mem_alloc = nullptr;
decltype(&cuMemFree_v2) mem_free = nullptr;
decltype(&cuCtxSetCurrent) set_current = nullptr;
CUcontext context = nullptr;

std::uintptr_t allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  if (mem_alloc(&address, bytes) != CUDA_SUCCESS) die("cuMemAlloc failed");
  return address;
}
void release(std::uintptr_t address) {
  if (mem_free(address) != CUDA_SUCCESS) die("cuMemFree failed");
}
void enter_thread() {
  if (set_current(context) != CUDA_SUCCESS) die("cuCtxSetCurrent failed");
}

Allocator open() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) die(dlerror());
  CUdevice device = 0;
  const bool ready = find<decltype(cuInit)>(library, "cuInit")(0) == CUDA_SUCCESS &&
                     find<decltype(cuDeviceGet)>(library, "cuDeviceGet")(&device, 0) == CUDA_SUCCESS &&
                     find<decltype(cuDevicePrimaryCtxRetain)>(library, "cuDevicePrimaryCtxRetain")(&context, device) == CUDA_SUCCESS;
  if (!ready) die("no usable CUDA device");
  mem_alloc = find<decltype(cuMemAlloc_v2)>(library, "cuMemAlloc_v2");
  mem_free = find<decltype(cuMemFree_v2)>(library, "cuMemFree_v2");
  set_current = find<decltype(cuCtxSetCurrent)>(library, "cuCtxSetCurrent");
  return {"driver", &allocate, &release, &enter_thread};
}
}  // namespace driver

namespace mimalloc {
void* (*mi_malloc)(std::size_t) = nullptr;
void (*mi_free)(void*) = nullptr;

std::uintptr_t allocate(std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(mi_malloc(bytes)); }
void release(std::uintptr_t address) { mi_free(reinterpret_cast<void*>(address)); }
void enter_thread() {}

Allocator open() {
  void* library = nullptr;
  for (const char* name : {"libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) die("libmimalloc not found (Debian: libmimalloc-dev)");
  mi_malloc = find<void*(std::size_t)>(library, "mi_malloc");
  mi_free = find<void(void*)>(library, "mi_free");
  return {"mimalloc", &allocate, &release, &enter_thread};
}
}  // namespace mimalloc

/// Waits, spinning, until `parties` threads have arrived for the `turn`th time.
void meet(std::atomic<int>& arrived, int parties, int turn) {
  arrived.fetch_add(1);
  while (arrived.load() < parties * turn) std::this_thread::yield();
}

void measure(const Allocator& allocator, std::size_t bytes, int threads) {
  std::atomic<int> arrived{0};
  std::vector<std::vector<double>> nanoseconds(static_cast<std::size_t>(threads));
  std::vector<std::thread> workers;
  for (int worker = 0; worker < threads; ++worker) {
    workers.emplace_back([&, worker] {
      allocator.enter_thread();
      std::vector<std::uintptr_t> live(kLiveBlocks);
      for (std::uintptr_t& address : live) address = allocator.allocate(bytes);
      for (int round = 0; round < kRounds + kWarmUpRounds; ++round) {
        meet(arrived, threads, round + 1);
        const auto start = std::chrono::steady_clock::now();
        for (std::size_t pair = 0; pair < kPairsPerRound; ++pair) {
          std::uintptr_t& address = live[(pair * 97) % kLiveBlocks];
          allocator.release(address);
          address = allocator.allocate(bytes);
        }
        const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
        if (round >= kWarmUpRounds) nanoseconds[static_cast<std::size_t>(worker)].push_back(took.count() / kPairsPerRound);
      }
      for (const std::uintptr_t address : live) allocator.release(address);
    });
  }
  for (std::thread& worker : workers) worker.join();
  std::printf("{\"allocator\": \"%s\", \"bytes\": %zu, \"threads\": %d, \"ns_per_pair\": [", allocator.name.c_str(), bytes, threads);
  const char* separator = "";
  for (const auto& rounds : nanoseconds) {
    for (const double value : rounds) std::printf("%s%.2f", std::exchange(separator, ", "), value);
  }
  std::printf("]}\n");
}

}  // namespace

int main(int argc, char** argv) {
  const bool use_mimalloc = argc == 2 && std::strcmp(argv[1], "--mimalloc") == 0;
  if (argc > 1 && !use_mimalloc) die("usage: hot_path [--mimalloc]");
  const Allocator allocator = use_mimalloc ? mimalloc::open() : driver::open();
  for (const int threads : {1, 2}) {
    for (const std::size_t bytes : {std::size_t{1024}, std::size_t{64} << 10, std::size_t{4} << 20}) measure(allocator, bytes, threads);
  }
  return 0;
}
