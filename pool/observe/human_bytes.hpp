// human_bytes: an amount of memory for a person. Only in what is printed: reports have integer bytes.
#pragma once

#include <cstdint>
#include <string>

namespace cupool::observe {

/// "1.50 GiB": rounded down, so that "short by" is never more than it is; exact below 1 KiB.
std::string human_bytes(std::uint64_t bytes);

}  // namespace cupool::observe
