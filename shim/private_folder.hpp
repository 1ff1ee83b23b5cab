// The user's own folder in shared memory, and what its files have in common: each is named after a process and locked while that process lives, and
// is trusted only where nobody else can have put it there.
//
// The folder is /dev/shm/cupool-<uid>. Everybody may make folders in /dev/shm, so that somebody else may have taken that name, by accident or on
// purpose: then /dev/shm/cupool-<uid>.XXXXXX stands in for it, whose name nobody can know beforehand. Readers look into every such folder that
// belongs to the user. Never calls the driver. Thread rule: functions without state; they throw std::bad_alloc unless they are noexcept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cupool::shim::private_folder {

/// A descriptor of the user's folder in `shared_memory`, which is a real directory, the user's, 0700; makes it where there is none. -1: that failed.
int open(const std::string& shared_memory);

/// A descriptor of the first of the user's folders that has an entry named `file`; -1: none has.
int open_with(const std::string& shared_memory, const std::string& file);

/// Moves a descriptor away from the low numbers that programs expect to get; it is close-on-exec then. Returns the new one; -1: there is no number
/// that would do, and the file is closed.
int move_high(int file);

/// Locks the file until the process ends, or closes any descriptor of it (POSIX record lock).
void lock_for_life(int file);

/// Does `process`, "<pid>.<start ticks>", name a process that is gone, and does nobody hold the lock of its file `name`? A process in another pid
/// namespace is not seen here, but holds its lock. Must not be asked about a file of one's own, whose lock closing it again would drop.
bool is_dead(int folder, const char* name, std::string_view process);

/// Removes files "<prefix><pid>.<start ticks>" of processes that are gone, the oldest first, until `kept` of them are left. `own`, the caller's file,
/// is passed over (see is_dead). Where host memory is out, they stay.
void remove_dead(int folder, std::string_view prefix, const std::string& own, std::size_t kept) noexcept;

}  // namespace cupool::shim::private_folder
