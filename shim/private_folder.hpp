// The user's own folder in shared memory, /dev/shm/cupool-<uid>, and what its files have in common: named after a process,
// locked while that process lives, trusted only when nobody else could have put them there.
//
// Never calls the driver. Thread rule: functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cupool::shim::private_folder {

inline constexpr std::size_t kEntriesLookedAtMax = 4096;  ///< of the folder, by who tidies it

/// A descriptor of the folder: 0700, a real directory, ours. -1 when it is not there, or not to be trusted: errno is then EPERM, or ENOTDIR
/// where the name is a file or a link.
int open(const std::string& shared_memory, bool create);

/// Away from the low numbers that programs expect to get; close-on-exec.
int move_high(int file);

/// Locked until the process ends or closes any descriptor of the file (POSIX).
void lock_for_life(int file);

/// "<pid>.<start ticks>" names a process that is no more (or has become another), and nobody holds `name`'s lock: the
/// process may live in a pid namespace that we do not see. Never asked for a file of one's own, whose lock that would drop.
bool is_dead(int folder, const char* name, std::string_view process);

}  // namespace cupool::shim::private_folder
