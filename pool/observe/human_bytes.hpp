// human_bytes, human_address: amounts and addresses as text for people. Only for what is printed: reports have integers.
#pragma once

#include <cstdint>
#include <string>

namespace cupool::observe {

/// "1.50 GiB": rounded down, so that no more is promised than there is; exact below 1 KiB.
std::string human_bytes(std::uint64_t bytes);
/// As human_bytes(), rounded up: for what is missing, so that adding as much is enough.
std::string human_bytes_up(std::uint64_t bytes);

/// "0x7f12a0000000": a device address or a handle.
std::string human_address(std::uint64_t address);

}  // namespace cupool::observe
