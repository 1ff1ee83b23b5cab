// The user's own folder in shared memory and what its files have in common: named after a process, locked while that process
// lives, trusted only when nobody else could have put them there.
//
// The folder is /dev/shm/cupool-<uid>. Everybody may make folders there, so that somebody else may have that name, by accident or on
// purpose: then it is /dev/shm/cupool-<uid>.XXXXXX, a name that nobody knows beforehand, and found by its owner. Readers look into all.
//
// Never calls the driver. Thread rule: functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cupool::shim::private_folder {

/// A descriptor of the folder: 0700, a real directory, ours; made where there is none. -1: it cannot be.
int open(const std::string& shared_memory);

/// Of that one of our folders which has a file of this name; -1: none has.
int open_with(const std::string& shared_memory, const std::string& file);

/// Away from the low numbers that programs expect to get; close-on-exec.
int move_high(int file);

/// Locked until the process ends or closes any descriptor of the file (POSIX).
void lock_for_life(int file);

/// "<pid>.<start ticks>" names a process that is no more (or has become another), and nobody holds `name`'s lock: the
/// process may live in a pid namespace that we do not see. Never asked for a file of one's own, whose lock that would drop.
bool is_dead(int folder, const char* name, std::string_view process);

/// Files "<prefix><pid>.<start ticks>" of processes that are no more go, the oldest first, until `kept` are left. `own` is spared: asking for the
/// lock of one's own file and closing it would drop the lock (POSIX). Without host memory they stay.
void remove_dead(int folder, std::string_view prefix, const std::string& own, std::size_t kept) noexcept;

}  // namespace cupool::shim::private_folder
