// See human_bytes.hpp.
#include "pool/observe/human_bytes.hpp"

#include <cinttypes>
#include <cstdio>

#include "pool/core/bytes.hpp"

namespace cupool::observe {

std::string human_bytes(std::uint64_t bytes) {
  struct Unit {
    std::uint64_t bytes;
    const char* name;
  };
  static constexpr Unit kUnits[] = {{kGiB * kKiB, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}};
  char text[48];
  for (const Unit& unit : kUnits) {
    if (bytes < unit.bytes) continue;
    const std::uint64_t hundredths = bytes / unit.bytes * 100 + bytes % unit.bytes * 100 / unit.bytes;
    std::snprintf(text, sizeof text, "%" PRIu64 ".%02" PRIu64 " %s", hundredths / 100, hundredths % 100, unit.name);
    return text;
  }
  std::snprintf(text, sizeof text, "%" PRIu64 " bytes", bytes);
  return text;
}

std::string human_address(std::uint64_t address) {
  char text[2 + 16 + 1];
  std::snprintf(text, sizeof text, "0x%" PRIx64, address);
  return text;
}

}  // namespace cupool::observe
