// See real_driver.hpp. The address range of the bound driver is kept, because dladdr would be most of what a substituted lookup costs.
#include "shim/real_driver.hpp"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstring>
#include <string_view>

using DlsymFunction = void* (*)(void*, const char*);

// Read by the assembly of dlsym (exports.S). The next dlsym is the one behind ours: glibc's, or that of another library which stands in for it, whose
// code then lies from begin to end. The real one is glibc's, which we ask ourselves.
extern "C" {
[[gnu::visibility("hidden")]] extern std::atomic<DlsymFunction> cupool_real_dlsym;
[[gnu::visibility("hidden")]] extern std::atomic<DlsymFunction> cupool_next_dlsym;
[[gnu::visibility("hidden")]] extern std::atomic<std::uintptr_t> cupool_next_begin;
[[gnu::visibility("hidden")]] extern std::atomic<std::uintptr_t> cupool_next_end;
[[gnu::visibility("hidden")]] DlsymFunction cupool_resolve_dlsym();
constinit std::atomic<DlsymFunction> cupool_real_dlsym{nullptr};
constinit std::atomic<DlsymFunction> cupool_next_dlsym{nullptr};
constinit std::atomic<std::uintptr_t> cupool_next_begin{0};
constinit std::atomic<std::uintptr_t> cupool_next_end{0};
}

namespace cupool::shim::real_driver {
namespace {

constinit std::atomic<void*> g_handle{nullptr};
constinit std::atomic<std::uintptr_t> g_code_begin{0};
constinit std::atomic<std::uintptr_t> g_code_end{0};
/// Where the code of the object lies that the bound one has loaded, if that is only a loader (is_given_by_driver).
constinit std::atomic<std::uintptr_t> g_loaded_begin{0};
constinit std::atomic<std::uintptr_t> g_loaded_end{0};

bool is_driver_file(const char* path) {
  if (path == nullptr) return false;
  const char* slash = std::strrchr(path, '/');
  return std::strncmp(slash != nullptr ? slash + 1 : path, "libcuda.so", 10) == 0;
}

struct RangeSearch {
  std::uintptr_t address;
  std::uintptr_t begin;
  std::uintptr_t end;
};

/// Ends the walk at the object that holds search.address, and fills in where it lies.
int match_object(dl_phdr_info* info, std::size_t, void* argument) {
  auto& search = *static_cast<RangeSearch*>(argument);
  std::uintptr_t begin = UINTPTR_MAX;
  std::uintptr_t end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    begin = std::min<std::uintptr_t>(begin, info->dlpi_addr + segment.p_vaddr);
    end = std::max<std::uintptr_t>(end, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
  }
  if (search.address < begin || search.address >= end) return 0;
  search.begin = begin;
  search.end = end;
  return 1;
}

/// Where the object lies that holds `address`; from 0 to 0 if there is none.
RangeSearch range_of(const void* address) {
  RangeSearch search{reinterpret_cast<std::uintptr_t>(address), 0, 0};
  dl_iterate_phdr(&match_object, &search);
  return search;
}

/// Is this the toolkit's stub library, which is meant for the linker alone? Each of its functions does nothing but return CUDA_ERROR_STUB_LIBRARY
/// (34). It is never adopted, and not kept open, because others would then get it by the driver's name. Its code is looked at, not called: a call
/// into a real one may load the driver.
bool is_stub(void* handle) {
  constexpr unsigned char kLoadsCode[] = {0xb8, static_cast<unsigned char>(CUDA_ERROR_STUB_LIBRARY), 0, 0, 0};  // mov eax, 34
  constexpr std::size_t kLargest_bytes = 32;
  Dl_info info{};
  const ElfW(Sym)* symbol = nullptr;
  void* const version = real_dlsym(handle, "cuDriverGetVersion");
  if (version == nullptr || dladdr1(version, &info, const_cast<void**>(reinterpret_cast<const void**>(&symbol)), RTLD_DL_SYMENT) == 0) return false;
  if (symbol == nullptr || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_size > kLargest_bytes) return false;
  const std::string_view code(static_cast<const char*>(version), symbol->st_size);
  return code.find(std::string_view(reinterpret_cast<const char*>(kLoadsCode), sizeof kLoadsCode)) != std::string_view::npos;
}

/// Remembers the functions of `handle`, a loaded libcuda; false: it is none. Stores the handle last, so that whoever sees it sees the rest.
bool adopt(void* handle) {
  for (std::size_t i = 0; i < kEntryCount; ++i) {
    void* found = real_dlsym(handle, kEntryPoints[i].symbol);
    if (found == exported_address(static_cast<Entry>(i))) found = nullptr;
    g_functions[i].store(found, std::memory_order_relaxed);
  }
  const void* const init = real_dlsym(handle, "cuInit");
  if (init == nullptr) return false;
  const RangeSearch search = range_of(init);
  g_code_end.store(search.end, std::memory_order_relaxed);
  g_code_begin.store(search.begin, std::memory_order_relaxed);
  g_handle.store(handle, std::memory_order_release);
  return true;
}

bool is_bound() { return g_handle.load(std::memory_order_acquire) != nullptr; }

}  // namespace

void* real_dlsym(void* handle, const char* name) {
  DlsymFunction real = cupool_real_dlsym.load(std::memory_order_acquire);
  if (real == nullptr) {
    cupool_resolve_dlsym();
    real = cupool_real_dlsym.load(std::memory_order_acquire);
  }
  return real != nullptr ? real(handle, name) : nullptr;
}

/// glibc's dlsym. Asked for by its version, which other libraries that stand in for dlsym do not have. Safe before constructors have run.
DlsymFunction find_libc_dlsym() {
  void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  if (found == nullptr) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  return reinterpret_cast<DlsymFunction>(found);
}

void* symbol_past_ourselves(const char* name) { return real_dlsym(RTLD_NEXT, name); }

std::optional<Entry> find_function(const void* address) {
  if (address == nullptr) return std::nullopt;
  for (std::size_t i = 0; i < kEntryCount; ++i) {
    if (g_functions[i].load(std::memory_order_relaxed) == address) return static_cast<Entry>(i);
  }
  return std::nullopt;
}

bool is_driver_code(const void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  // The end is read first, because it is stored last.
  const auto is_in = [value](const std::atomic<std::uintptr_t>& begin, const std::atomic<std::uintptr_t>& end) {
    return value < end.load(std::memory_order_acquire) && value >= begin.load(std::memory_order_relaxed);
  };
  if (is_bound()) return is_in(g_code_begin, g_code_end) || is_in(g_loaded_begin, g_loaded_end);
  Dl_info info{};
  return dladdr(address, &info) != 0 && is_driver_file(info.dli_fname);
}

bool is_given_by_driver(const void* address) {
  if (is_driver_code(address)) return true;
  Dl_info info{};
  if (!is_bound() || dladdr(address, &info) == 0 || !is_driver_file(info.dli_fname)) return false;
  const RangeSearch search = range_of(address);
  g_loaded_begin.store(search.begin, std::memory_order_relaxed);
  g_loaded_end.store(search.end, std::memory_order_release);
  return true;
}

bool driver_precedes_us() {
  void* const found = real_dlsym(RTLD_DEFAULT, kEntryPoints[0].symbol);  // any of our symbols would do
  return found != nullptr && is_bound() && find_function(found).has_value();
}

bool bind_containing(const void* address) {
  if (is_bound()) return true;
  Dl_info info{};
  if (dladdr(address, &info) == 0 || !is_driver_file(info.dli_fname)) return false;
  void* handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  if (!is_stub(handle)) return adopt(handle);
  dlclose(handle);
  return false;
}

bool bind(bool may_load) {
  if (is_bound()) return true;
  if (void* loaded = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) return adopt(loaded);
  if (void* linked = symbol_past_ourselves("cuInit"); linked != nullptr && bind_containing(linked)) return true;
  if (!may_load) return false;
  void* handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return handle != nullptr && adopt(handle);
}

std::string fill(DriverApi& api) {
  void* handle = g_handle.load(std::memory_order_acquire);
  std::string missing;
  enum Need { OPTIONAL, REQUIRED };
  const auto look_up = [&](const char* symbol, Need need) {
    void* found = handle != nullptr ? real_dlsym(handle, symbol) : nullptr;
    if (found == nullptr && need == REQUIRED && missing.empty()) missing = symbol;
    return found;
  };
#define DRIVER_CALL(symbol, since, need) api.symbol = reinterpret_cast<decltype(api.symbol)>(look_up(#symbol, need));
#include "pool/driver/driver_api.def"
#undef DRIVER_CALL
  return missing;
}

}  // namespace cupool::shim::real_driver

DlsymFunction cupool_resolve_dlsym() {
  using namespace cupool::shim::real_driver;
  const DlsymFunction real = find_libc_dlsym();
  if (real == nullptr) return nullptr;
  void* const found = real(RTLD_NEXT, "dlsym");  // the next one behind this library
  const auto next = found != nullptr ? reinterpret_cast<DlsymFunction>(found) : real;
  if (next != real) {
    const auto [address, begin, end] = range_of(found);
    cupool_next_end.store(end, std::memory_order_relaxed);
    cupool_next_begin.store(begin, std::memory_order_relaxed);
  }
  cupool_real_dlsym.store(real, std::memory_order_release);
  cupool_next_dlsym.store(next, std::memory_order_release);
  return next;
}
