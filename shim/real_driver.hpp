// The real libcuda.so.1: finds it and remembers its functions, never our own exports.
//
// Takes the object that the program itself has loaded. Loads one only when a hook was called without any, by a program that links the driver
// directly. Its handle is never closed. Symbols are looked up through glibc's dlsym, past our own. Thread rule: bind() may race with itself, since
// all get the same answers; reads are lock-free.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <string>

#include "pool/driver/driver_api.hpp"
#include "shim/entry_points.hpp"

namespace cupool::shim::real_driver {

/// The real functions, by entry; only for function().
inline constinit std::array<std::atomic<void*>, kEntryCount> g_functions{};
/// The real function of `entry`; nullptr while unbound, or when this driver does not have it.
inline void* function(Entry entry) { return g_functions[static_cast<std::size_t>(entry)].load(std::memory_order_acquire); }

/// The entry whose real function is at `address`.
std::optional<Entry> find_function(const void* address);

/// Does `address` lie in an object whose file name begins with libcuda.so? Once a driver is bound: in that one, or in the one that
/// is_given_by_driver() has met.
bool is_driver_code(const void* address);
/// The same for an address that the driver's own lookup gave. Where the bound object is only a loader (WSL), it lies in another one that this has
/// loaded.
bool is_given_by_driver(const void* address);

/// Does libcuda come before this library in the global search order (LD_PRELOAD names it first)? Then a program that links the driver directly gets
/// the driver's functions, and only what is looked up comes to us.
bool driver_precedes_us();

/// Binds to the libcuda that contains `address`, unless it is the toolkit's stub library. True: a driver is bound.
bool bind_containing(const void* address);
/// Binds to the libcuda.so.1 that is loaded, or, if `may_load` and there is none, loads one. True: a driver is bound.
bool bind(bool may_load);

/// Fills every row of driver_api.def from the bound driver. Returns the first REQUIRED symbol that it lacks, or an empty string.
std::string fill(DriverApi& api);

/// The oldest driver that the library serves: what DESIGN section 4 promises.
inline constexpr int kOldestDriverVersion = 11040;

/// What `name` is behind this library in the global search order; nullptr: nothing.
void* symbol_past_ourselves(const char* name);
/// glibc's dlsym, called from this library.
void* real_dlsym(void* handle, const char* name);

}  // namespace cupool::shim::real_driver
