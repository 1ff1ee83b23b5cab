// A preload that counts which driver functions a CUDA runtime calls. It hands out a small thunk in place of every
// function that dlsym or cuGetProcAddress gives out of libcuda: count, then jump, whatever the signature. With
// GPU_TRACE_TABLES=1 the functions in export tables are counted too ("table <id>[index]"). The traced program calls
// gpu_trace_mark. x86-64 only. Thunks and counters live as long as the process.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "tests/gpu/programs/trace_mark.h"

namespace {

constexpr std::size_t kThunk_bytes = 32, kChunk_bytes = 1 << 20, kLargestTable_bytes = 8192;

struct Counter {
  std::string name;
  std::uint64_t calls = 0;  // incremented by the thunk, with lock
};

struct Tracer {
  std::mutex mutex;
  std::map<void*, void*> thunk_of;        // by target
  std::map<const void*, void*> table_of;  // by the driver's table
  std::map<std::string, Counter> counters;
  unsigned char* next = nullptr;
  unsigned char* end = nullptr;
};

Tracer& tracer() {
  static Tracer* one = new Tracer;  // thunks run after destructors
  return *one;
}

using Dlsym = void*(void*, const char*);
Dlsym* real_dlsym() {
  static Dlsym* found = reinterpret_cast<Dlsym*>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  return found;
}

bool is_driver_code(void* address, Dl_info* info) {
  return dladdr(address, info) != 0 && info->dli_fname != nullptr && std::strstr(info->dli_fname, "libcuda.so") != nullptr;
}

unsigned char* take_thunk(Tracer& own) {
  if (own.next == own.end) {
    void* chunk = mmap(nullptr, kChunk_bytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk == MAP_FAILED) return nullptr;
    own.next = static_cast<unsigned char*>(chunk);
    own.end = own.next + kChunk_bytes;
  }
  unsigned char* thunk = own.next;
  own.next += kThunk_bytes;
  return thunk;
}

/// endbr64; mov r11, &calls; lock inc qword [r11]; mov r11, target; jmp r11. r11 carries no argument.
void write_thunk(unsigned char* thunk, std::uint64_t* calls, void* target) {
  const auto put = [&thunk](const void* bytes, std::size_t count) {
    std::memcpy(thunk, bytes, count);
    thunk += count;
  };
  put("\xF3\x0F\x1E\xFA\x49\xBB", 6);
  put(&calls, sizeof calls);
  put("\xF0\x49\xFF\x03\x49\xBB", 6);
  put(&target, sizeof target);
  put("\x41\xFF\xE3", 3);
}

void* counted(void* target, const std::string& name) {
  Tracer& own = tracer();
  const std::lock_guard<std::mutex> guard(own.mutex);
  const auto known = own.thunk_of.find(target);
  if (known != own.thunk_of.end()) return known->second;
  unsigned char* thunk = take_thunk(own);
  if (thunk == nullptr) return target;
  Counter& counter = own.counters[name];
  counter.name = name;
  write_thunk(thunk, &counter.calls, target);
  own.thunk_of[target] = thunk;
  own.thunk_of[thunk] = thunk;
  return thunk;
}

void* replacement(void* found, const char* name, int version);

CUresult get_proc_address(const char* name, void** out, int version, cuuint64_t flags) {
  auto* real = reinterpret_cast<decltype(&::cuGetProcAddress)>(real_dlsym()(RTLD_DEFAULT, "cuGetProcAddress"));
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (real == nullptr) real = reinterpret_cast<decltype(real)>(real_dlsym()(driver, "cuGetProcAddress"));
  const CUresult code = real(name, out, version, flags);
  if (code == CUDA_SUCCESS && out != nullptr && *out != nullptr) *out = replacement(*out, name, version);
  return code;
}

CUresult get_proc_address_v2(const char* name, void** out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto* real = reinterpret_cast<decltype(&::cuGetProcAddress_v2)>(real_dlsym()(driver, "cuGetProcAddress_v2"));
  const CUresult code = real(name, out, version, flags, status);
  if (code == CUDA_SUCCESS && out != nullptr && *out != nullptr) *out = replacement(*out, name, version);
  return code;
}

/// A copy of the driver's table in which every pointer into libcuda counts. Tables begin with their size in bytes.
const void* traced_table(const void* table, const CUuuid* id) {
  {
    const std::lock_guard<std::mutex> guard(tracer().mutex);
    const auto known = tracer().table_of.find(table);
    if (known != tracer().table_of.end()) return known->second;
  }
  std::size_t bytes = 0;
  std::memcpy(&bytes, table, sizeof bytes);
  if (bytes < 16 || bytes > kLargestTable_bytes || bytes % 8 != 0) return table;
  auto* copy = static_cast<void**>(std::malloc(bytes));
  std::memcpy(copy, table, bytes);
  char label[64];
  for (std::size_t i = 1; i < bytes / 8; ++i) {
    Dl_info info;
    std::snprintf(label, sizeof label, "table %02x%02x%02x%02x[%zu]", id->bytes[0] & 0xFF, id->bytes[1] & 0xFF, id->bytes[2] & 0xFF,
                  id->bytes[3] & 0xFF, i);
    if (copy[i] != nullptr && is_driver_code(copy[i], &info)) copy[i] = counted(copy[i], label);
  }
  const std::lock_guard<std::mutex> guard(tracer().mutex);
  tracer().table_of[table] = copy;
  return copy;
}

CUresult get_export_table(const void** out, const CUuuid* id) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto* real = reinterpret_cast<decltype(&::cuGetExportTable)>(real_dlsym()(driver, "cuGetExportTable"));
  const CUresult code = real(out, id);
  if (code == CUDA_SUCCESS && out != nullptr && *out != nullptr && std::getenv("GPU_TRACE_TABLES") != nullptr) *out = traced_table(*out, id);
  return code;
}

/// The one argument that cannot be told from counts: which element size the runtime passes.
std::atomic<unsigned> g_pitch_element{0};
std::atomic<decltype(&::cuMemAllocPitch_v2)> g_counted_pitch{nullptr};
CUresult allocate_pitch(CUdeviceptr* out, std::size_t* pitch, std::size_t width, std::size_t height, unsigned element) {
  g_pitch_element = element;
  return g_counted_pitch.load()(out, pitch, width, height, element);
}

void* replacement(void* found, const char* name, int version) {
  constexpr int kFirstWithStatus = 12000;
  if (std::strcmp(name, "cuGetProcAddress_v2") == 0 || (std::strcmp(name, "cuGetProcAddress") == 0 && version >= kFirstWithStatus)) {
    return reinterpret_cast<void*>(&get_proc_address_v2);
  }
  if (std::strcmp(name, "cuGetProcAddress") == 0) return reinterpret_cast<void*>(&get_proc_address);
  if (std::strcmp(name, "cuGetExportTable") == 0) return reinterpret_cast<void*>(&get_export_table);
  Dl_info info;
  if (!is_driver_code(found, &info)) return found;
  const bool is_exact = info.dli_sname != nullptr && info.dli_saddr == found;
  const std::string symbol = is_exact ? info.dli_sname : name;
  void* thunk = counted(found, symbol);
  if (symbol != "cuMemAllocPitch_v2") return thunk;
  g_counted_pitch = reinterpret_cast<decltype(&::cuMemAllocPitch_v2)>(thunk);
  return reinterpret_cast<void*>(&allocate_pitch);
}

bool is_memory_call(const std::string& name) {
  return name.find("Alloc") != std::string::npos || name.rfind("cuMemFree", 0) == 0 || name.rfind("cuMemCreate", 0) == 0 ||
         name.rfind("cuMemMap", 0) == 0 || name.rfind("cuArray", 0) == 0 || name.rfind("table ", 0) == 0;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void* dlsym(void* handle, const char* name) noexcept {
  void* found = real_dlsym()(handle, name);
  if (found == nullptr || name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z') return found;
  Dl_info info;
  return is_driver_code(found, &info) ? replacement(found, name, 0) : found;
}

EXPORTED void gpu_trace_mark(const char* label, const char* assumed) {
  std::string all, memory;
  Tracer& own = tracer();
  const std::lock_guard<std::mutex> guard(own.mutex);
  for (auto& [name, counter] : own.counters) {
    const std::uint64_t calls = __atomic_exchange_n(&counter.calls, 0, __ATOMIC_RELAXED);
    if (calls == 0) continue;
    all += (all.empty() ? "\"" : ", \"") + name + "\": " + std::to_string(calls);
    if (is_memory_call(name)) memory += (memory.empty() ? "" : " ") + name;
  }
  if (label == nullptr) return;
  const std::string question = std::string("{\"question\": \"driver calls of ") + label;
  std::string lines = question + "\", \"answer\": {" + all + "}}\n" + question + ": those about memory\", \"answer\": \"" + memory + "\"";
  if (assumed != nullptr) lines += std::string(", \"assumed\": \"") + assumed + "\"";
  lines += "}\n";
  if (const unsigned element = g_pitch_element.exchange(0)) {
    lines += question + ": element size passed to cuMemAllocPitch\", \"answer\": " + std::to_string(element) + ", \"assumed\": 4}\n";
  }
  if (write(STDOUT_FILENO, lines.data(), lines.size()) < 0) return;
}
