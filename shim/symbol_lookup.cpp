// What a program gets when it looks a driver function up: dlsym (the half behind the assembly in exports.S) and
// cuGetProcAddress in both forms. Hands out the trampoline of exactly the symbol that the real lookup found, so that
// versions and per-thread variants never mix. Source: CUDA_FACTS section 1; CUDA Driver API 13.0 §6.35.
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

/// What a program sets for its children says nothing about itself: functions of both kinds in one process would free each other's memory.
enum class Switch : unsigned char { unread, on, off };
constinit std::atomic<Switch> g_switch{Switch::unread};

link_map* object_of(const void* address) {
  Dl_info info{};
  link_map* object = nullptr;
  return dladdr1(address, &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) != 0 ? object : nullptr;
}

link_map* own_object() {
  static const char kOurs = 0;
  return object_of(&kOurs);
}

/// What the caller's own scope holds: the libraries that it was linked with, for a plugin that was opened RTLD_LOCAL.
/// The program itself has no scope but the global one.
void* find_in_scope_of(const void* caller, const char* symbol) {
  const link_map* object = object_of(caller);
  if (object == nullptr || *object->l_name == '\0') return nullptr;
  void* handle = dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  void* found = real_driver::real_dlsym(handle, symbol);
  dlclose(handle);  // the caller is running: it stays loaded
  return found;
}

/// RTLD_DEFAULT and dlopen(NULL) handles find our own export first. What would the program have found without us?
/// A driver in the global search order, or one that only the caller's own scope has.
void* find_behind_export(Entry entry, const void* caller) {
  const char* symbol = kEntryPoints[static_cast<std::size_t>(entry)].symbol;
  if (void* next = real_driver::symbol_past_ourselves(symbol)) return next;
  return find_in_scope_of(caller, symbol);
}

/// Is the object of `caller` the program, or loaded before us? Its RTLD_NEXT finds our export, or that of an interposer between.
bool stands_before_us(const void* caller) {
  const link_map* asking = object_of(caller);
  const link_map* own = own_object();
  if (asking == nullptr || own == nullptr) return true;
  while (own != nullptr && own != asking) own = own->l_prev;
  return own != nullptr;
}

/// Has an object between that of `caller` and us the symbol? Its dependencies do not count.
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

/// Is `found` the very function that stands behind our export, for a caller that is not the driver itself?
bool is_to_be_replaced(Entry entry, void* found, const void* caller) {
  if (real_driver::find_function(found) != entry && !real_driver::bind_containing(found)) return false;
  return real_driver::function(entry) == found && !real_driver::is_driver_code(caller) && !is_switched_off();
}

/// RTLD_NEXT of a library behind us finds the driver itself. UCX takes the address that it patches this way: it gets ours, or it would
/// never learn of a pooled block's free. An interposer's own next is left to glibc, which knows the order.
DlsymDecision decide_next(Entry entry, const void* caller) {
  constexpr DlsymDecision kAskTheRealOne{nullptr, false};
  if (stands_before_us(caller)) {
    // Behind us nobody has it, as long as the driver is opened RTLD_LOCAL: our export must not stand for it.
    const char* symbol = kEntryPoints[static_cast<std::size_t>(entry)].symbol;
    if (stands_between(symbol, caller) || real_driver::symbol_past_ourselves(symbol) != nullptr) return kAskTheRealOne;
    return DlsymDecision{nullptr, true};
  }
  void* found = find_behind_export(entry, caller);
  if (found == nullptr || !is_to_be_replaced(entry, found, caller)) return kAskTheRealOne;
  dlerror();
  return DlsymDecision{exported_address(entry), true};
}

/// What the program looks up may be a sign of what it will do. What the driver looks up of its own, as a loader does that only passes calls on
/// (WSL's), is all that there is, and no sign.
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
    real_driver::symbol_past_ourselves(name);  // fails once more, so that dlerror() tells of it as the program expects
    return DlsymDecision{nullptr, true};
  }
  dlerror();  // what a successful dlsym leaves: nothing
  return DlsymDecision{is_to_be_replaced(*entry, found, caller) ? ours : found, true};
}

namespace front_door {
namespace {

/// The row that `found` is, which `ask` gave for (name, version). A driver returns the pointer that dlsym gives (H100 and H200, driver 580); should
/// one not, it is the row that was asked for, if the driver gives the same for the version of that row. Else it is a later variant, of other
/// arguments.
template <class Ask> std::optional<Entry> entry_of(void* found, const char* name, int version, bool per_thread, const Ask& ask) {
  if (const std::optional<Entry> entry = real_driver::find_function(found)) return entry;
  if (!real_driver::is_given_by_driver(found)) return std::nullopt;
  const std::optional<Entry> entry = find_looked_up(name, version, per_thread);
  if (!entry) return std::nullopt;
  void* of_row = nullptr;
  const bool is_same = ask(&of_row, kEntryPoints[static_cast<std::size_t>(*entry)].since) == CUDA_SUCCESS && of_row == found;
  return is_same ? entry : std::nullopt;
}

/// Our trampoline in the place of what `ask` found.
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
