// The real libcuda.so.1: found, remembered, never our own exports.
//
// Takes the object that the program itself uses (already loaded), and loads one only when a hook was called by a
// program that linked it directly. Handles are never closed. Looks symbols up through the real dlsym, so our own
// dlsym is not in the way. Thread rule: bind() may race with itself (same answers); reads are lock-free.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <string>

#include "pool/driver/driver_api.hpp"
#include "shim/entry_points.hpp"

namespace cupool::shim::real_driver {

/// By entry. For function() only.
inline constinit std::array<std::atomic<void*>, kEntryCount> g_functions{};
/// The real function of `entry`; nullptr while unbound, or when this driver does not have it.
inline void* function(Entry entry) { return g_functions[static_cast<std::size_t>(entry)].load(std::memory_order_acquire); }

/// The row whose real function is `address`.
std::optional<Entry> find_function(const void* address);

/// Is `address` inside an object whose file name begins with libcuda.so? Cached for the bound one, and the one that is_given_by_driver() met.
bool is_driver_code(const void* address);
/// The same of what the driver's own lookup gave. Where the bound object is only a loader (WSL), that lies in one that it has loaded.
bool is_given_by_driver(const void* address);

/// Does libcuda come before this library in the global search order (LD_PRELOAD names it first)? Then a program that links the driver directly gets
/// the driver's functions, and only what is looked up comes to us.
bool driver_precedes_us();

/// Binds to the object that contains `address` (not to the toolkit's stub library), to the libcuda.so.1 that is loaded, or (`may_load`) to one loaded
/// now. True when bound.
bool bind_containing(const void* address);
bool bind(bool may_load);

/// Fills every row of driver_api.def. Returns the first REQUIRED symbol that is missing, or an empty string.
std::string fill(DriverApi& api);

/// The oldest driver that the library serves: what DESIGN section 4 promises.
inline constexpr int kOldestDriverVersion = 11040;

/// The symbol that `name` has behind this library in the global search order, or nullptr.
void* symbol_past_ourselves(const char* name);
/// The real dlsym, asked in this library's name.
void* real_dlsym(void* handle, const char* name);

}  // namespace cupool::shim::real_driver
