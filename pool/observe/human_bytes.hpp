// human_bytes, human_address: memory for a person. Only in what is printed: reports have integers.
#pragma once

#include <cstdint>
#include <string>

namespace cupool::observe {

/// "1.50 GiB": rounded down, so that nobody has less than is said; exact below 1 KiB.
std::string human_bytes(std::uint64_t bytes);
/// The same rounded up: what is missing, so that whoever adds as much has enough.
std::string human_bytes_up(std::uint64_t bytes);

/// "0x7f12a0000000": a device address or a handle.
std::string human_address(std::uint64_t address);

}  // namespace cupool::observe
