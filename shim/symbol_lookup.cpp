// What a program gets when it looks a driver function up: by dlsym (the part behind the assembly in exports.S) and by both forms of cuGetProcAddress.
// The answer is the trampoline of exactly the symbol that the real lookup found, so that versions and per-thread variants never mix.
// Source: CUDA_FACTS section 1; CUDA Driver API 13.0 §6.35.
#include "shim/symbol_lookup.hpp"

#include <cuda.h>
#include <dlfcn.h>
#include <link.h>

#include <sys/auxv.h>

#include <atomic>
#include <cstdlib>

#include "config/units.hpp"
#include "shim/export_hints.hpp"
#include "shim/front_door.hpp"
#include "shim/real_driver.hpp"

namespace cupool::shim {
namespace {

/// Whether lookups are left untouched, decided once. A program may set CUPOOL_POLICY for its children later, which must not change it here: with
/// functions of both kinds in one process, blocks that one kind allocates would be freed by the other.
enum class Switch : unsigned char { unread, on, off };
constinit std::atomic<Switch> g_switch{Switch::unread};

/// The loaded object that holds `address`; nullptr: none.
link_map* object_of(const void* address) {
  Dl_info info{};
  link_map* object = nullptr;
  return dladdr1(address, &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) != 0 ? object : nullptr;
}

link_map* own_object() {
  static const char kOurs = 0;
  return object_of(&kOurs);
}

/// `symbol` in the caller's own scope, which has the libraries that it was linked with: for a plugin that was opened RTLD_LOCAL. The program itself
/// has only the global scope.
void* find_in_scope_of(const void* caller, const char* symbol) {
  const link_map* object = object_of(caller);
  if (object == nullptr || *object->l_name == '\0') return nullptr;
  void* handle = dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  void* found = real_driver::real_dlsym(handle, symbol);
  dlclose(handle);  // the caller is running: it stays loaded
  return found;
}

/// What a program would have found without us where RTLD_DEFAULT or a dlopen(NULL) handle finds our own export: a driver in the global search order,
/// or one that only the caller's own scope has.
void* find_behind_export(Entry entry, const void* caller) {
  const char* symbol = kEntryPoints[static_cast<std::size_t>(entry)].symbol;
  if (void* next = real_driver::symbol_past_ourselves(symbol)) return next;
  return find_in_scope_of(caller, symbol);
}

/// Does the object of `caller` come before this library in the loader's order, as the program does? Then its RTLD_NEXT finds our export, or that of
/// an interposer between the two.
bool precedes_us(const void* caller) {
  const link_map* asking = object_of(caller);
  const link_map* own = own_object();
  if (asking == nullptr || own == nullptr) return true;
  while (own != nullptr && own != asking) own = own->l_prev;
  return own != nullptr;
}

/// Does an object between the caller's and this library define the symbol itself?
bool stands_between(const char* symbol, const void* caller) {
  const link_map* asking = object_of(caller);
  const link_map* own = own_object();
  if (asking == nullptr || own == nullptr) return true;
  for (const link_map* object = own->l_prev; object != nullptr && object != asking; object = object->l_prev) {
    void* handle = dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;  // the vDSO
    void* found = real_driver::real_dlsym(handle, symbol);
    dlclose(handle);  // loaded with the program: it stays
    if (found != nullptr && object_of(found) == object) return true;
  }
  return false;
}

/// Is `found` the driver's function that our export stands for, and the caller not the driver itself?
bool is_to_be_replaced(Entry entry, void* found, const void* caller) {
  if (real_driver::find_function(found) != entry && !real_driver::bind_containing(found)) return false;
  return real_driver::function(entry) == found && !real_driver::is_driver_code(caller) && !is_switched_off();
}

/// A lookup by RTLD_NEXT. From a library behind us it finds the driver itself. UCX gets the address that it patches in this way: it is given ours, or
/// it would never learn that a pooled block is freed. What an interposer before us gets is left to glibc, which knows the order.
DlsymDecision decide_next(Entry entry, const void* caller) {
  constexpr DlsymDecision kAskTheRealOne{nullptr, false};
  if (precedes_us(caller)) {
    // The next one is our export, but nobody behind us has the symbol (the driver was opened RTLD_LOCAL): natively nothing would be found.
    const char* symbol = kEntryPoints[static_cast<std::size_t>(entry)].symbol;
    if (stands_between(symbol, caller) || real_driver::symbol_past_ourselves(symbol) != nullptr) return kAskTheRealOne;
    return DlsymDecision{nullptr, true};
  }
  void* found = find_behind_export(entry, caller);
  if (found == nullptr || !is_to_be_replaced(entry, found, caller)) return kAskTheRealOne;
  dlerror();
  return DlsymDecision{exported_address(entry), true};
}

/// A lookup by the program may be a hint at what it will do. A driver that is only a loader (WSL's) looks up all of its own functions: that is none.
void note_lookup(Entry entry, const void* caller) {
  const Role role = kEntryPoints[static_cast<std::size_t>(entry)].role;
  if ((role == Role::exporting || role == Role::ranges) && !is_switched_off() && !real_driver::is_driver_code(caller))
    export_hints::note_dlsym(entry);
}

}  // namespace

bool is_switched_off() {
  Switch is = g_switch.load(std::memory_order_relaxed);
  if (is != Switch::unread) return is == Switch::off;
  const char* policy = secure_getenv("CUPOOL_POLICY");
  const bool says_off = policy != nullptr && config::equals_ignoring_case(config::trim(policy), "off");  // as it is read later
  if (getauxval(AT_SECURE) == 0 && !says_off) return false;
  return g_switch.compare_exchange_strong(is, Switch::off, std::memory_order_relaxed) || is == Switch::off;
}

bool switch_on() {
  Switch is = Switch::unread;
  return g_switch.compare_exchange_strong(is, Switch::on, std::memory_order_relaxed) || is == Switch::on;
}

DlsymDecision decide_dlsym(void* handle, const char* name, const void* caller) {
  constexpr DlsymDecision kAskTheRealOne{nullptr, false};
  const std::optional<Entry> entry = find_symbol(name);
  if (!entry) {
    export_hints::note_dlsym(name);
    return kAskTheRealOne;
  }
  note_lookup(*entry, caller);
  if (handle == RTLD_NEXT) return decide_next(*entry, caller);
  void* const ours = exported_address(*entry);
  void* found = real_driver::real_dlsym(handle, name);
  if (found == nullptr) return kAskTheRealOne;
  if (found == ours) found = find_behind_export(*entry, caller);
  if (found == nullptr) {
    real_driver::symbol_past_ourselves(name);  // fails again, so that dlerror() says what the program expects
    return DlsymDecision{nullptr, true};
  }
  dlerror();  // clears the errors of our own lookups: a successful dlsym leaves none
  return DlsymDecision{is_to_be_replaced(*entry, found, caller) ? ours : found, true};
}

namespace front_door {
namespace {

/// The entry whose function is `found`, which the driver gave for (name, version). Drivers give the same pointers as dlsym (H100 and H200, driver
/// 580). Where one does not, it is the entry that was asked for, provided that `ask(&pointer, version)` gives the same pointer for that entry's
/// version. Otherwise `found` is a later variant, with other arguments.
template <class Ask> std::optional<Entry> entry_of(void* found, const char* name, int version, bool per_thread, const Ask& ask) {
  if (const std::optional<Entry> entry = real_driver::find_function(found)) return entry;
  if (!real_driver::is_given_by_driver(found)) return std::nullopt;
  const std::optional<Entry> entry = find_looked_up(name, version, per_thread);
  if (!entry) return std::nullopt;
  void* of_row = nullptr;
  const bool is_same = ask(&of_row, kEntryPoints[static_cast<std::size_t>(*entry)].since) == CUDA_SUCCESS && of_row == found;
  return is_same ? entry : std::nullopt;
}

/// Puts our trampoline in the place of what the driver found.
template <class Ask> void replace_in(void** function, const char* name, int version, cuuint64_t flags, const Ask& ask) {
  if (function == nullptr || *function == nullptr || name == nullptr || is_switched_off()) return;
  const std::optional<Entry> entry = entry_of(*function, name, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, ask);
  if (!entry || real_driver::function(*entry) == nullptr) return;
  export_hints::note_proc_address(*entry);
  *function = exported_address(*entry);
}

}  // namespace

CUresult look_up(const Real<CUresult(const char*, void**, int, cuuint64_t)>& real, const char* name, void** function, int version, cuuint64_t flags) {
  const CUresult result = real(name, function, version, flags);
  const auto ask = [&](void** of_row, int since) { return real(name, of_row, since, flags); };
  if (result == CUDA_SUCCESS) replace_in(function, name, version, flags, ask);
  return result;
}

CUresult look_up(const Real<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>& real, const char* name, void** function,
                 int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  const CUresult result = real(name, function, version, flags, status);
  CUdriverProcAddressQueryResult of_row_status{};
  const auto ask = [&](void** of_row, int since) { return real(name, of_row, since, flags, &of_row_status); };
  if (result == CUDA_SUCCESS) replace_in(function, name, version, flags, ask);
  return result;
}

}  // namespace front_door
}  // namespace cupool::shim

extern "C" [[gnu::visibility("hidden")]] cupool::shim::DlsymDecision cupool_decide_dlsym(void* handle, const char* name, const void* caller);

cupool::shim::DlsymDecision cupool_decide_dlsym(void* handle, const char* name, const void* caller) {
  return cupool::shim::decide_dlsym(handle, name, caller);
}
