// Files and folders by a path that the user gave, past no symbolic link that somebody else has placed.
//
// A folder on the way may be one that others can write to. A link there belongs to whoever placed it: one of the caller's (effective) user or of root
// is followed, any other refused with ELOOP. (Linux does so by itself in sticky folders at most, see /proc/sys/fs/protected_symlinks in proc(5).)
// Each part is opened relative to the one before it, so that swapping folders or links underneath changes nothing. Links of procfs are the kernel's.
// Source: open(2), path_resolution(7), proc(5).
#pragma once

#include <cstdint>
#include <string>

namespace cupool::observe {

/// What becomes of a folder that is not there: an error (ENOENT), or it is made, with mode 0700 whatever the umask is.
enum class Missing : std::uint8_t { refuse, make };

/// A descriptor of the folder at `path`, close-on-exec and good for calls relative to it only, or an errno, negative.
[[nodiscard]] int open_folder(const std::string& path, Missing missing);

/// As open(2) with `flags`, O_NOFOLLOW and O_CLOEXEC; a new file has mode 0600. `missing` is about the folders that it lies in. A descriptor, or an
/// errno, negative.
[[nodiscard]] int open_file(const std::string& path, int flags, Missing missing = Missing::refuse);

/// As unlink(2). What cannot be removed stays.
void remove_file(const std::string& path);

/// Why a file or folder could not be opened, in words. `error`: an errno, positive.
const char* reason_of(int error);

/// The two parts of a path to a file. The folder of a bare name is ".".
std::string folder_of(const std::string& path);
std::string name_of(const std::string& path);

}  // namespace cupool::observe
