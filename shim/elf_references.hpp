// Does a program's own code refer to a function that was linked into it? Tells, of a program with a statically linked library, which of
// the library's functions it uses: all of them are there, and none is imported.
//
// Reads an x86-64 ELF file with a symbol table; nothing in the file is believed. Reads at most kMostRead_bytes of it. Owns nothing,
// allocates nothing, thread-safe. Source: the ELF-64 object file format, the System V ABI for AMD64 §4.4.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace cupool::shim {

/// Of a file that is all tables and code, so that no file keeps its program waiting for long.
inline constexpr std::size_t kMostRead_bytes = std::size_t{1} << 30;

/// True: `file` defines the function `name`, and calls it, jumps to it, or takes its address. False: nothing like that was seen; so it is
/// too of a file that is stripped, damaged or for another machine.
[[nodiscard]] bool refers_to_own_function(std::span<const std::byte> file, std::string_view name) noexcept;

}  // namespace cupool::shim
