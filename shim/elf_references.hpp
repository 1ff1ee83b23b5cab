// Does a program's own code refer to a function that was linked into it? Of a statically linked library all functions are in the program and none is
// imported: this tells which of them the program uses.
//
// Reads an x86-64 ELF file with a symbol table, at most kMostRead_bytes of it. Every offset and size in the file is checked before it is used. Owns
// nothing, allocates nothing, thread-safe. Source: the ELF-64 object file format, the System V ABI for AMD64 §4.4.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace cupool::shim {

/// Most bytes of a file that are read, however it repeats itself: no file keeps its program waiting for long.
inline constexpr std::size_t kMostRead_bytes = std::size_t{1} << 30;

/// True: `file` defines the function `name`, and calls it, jumps to it or takes its address. False: nothing like that was found, or the file is
/// stripped, damaged or for another machine.
[[nodiscard]] bool refers_to_own_function(std::span<const std::byte> file, std::string_view name) noexcept;

}  // namespace cupool::shim
