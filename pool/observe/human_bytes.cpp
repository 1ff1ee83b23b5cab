// See human_bytes.hpp.
#include "pool/observe/human_bytes.hpp"

#include <cinttypes>
#include <cstdio>

#include "pool/core/bytes.hpp"

namespace cupool::observe {

namespace {
std::string text_of(std::uint64_t bytes, bool is_up) {
  struct Unit {
    std::uint64_t bytes;
    const char* name;
  };
  static constexpr Unit kUnits[] = {{kGiB * kKiB, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}};
  char text[48];
  for (const Unit& unit : kUnits) {
    if (bytes < unit.bytes) continue;
    const std::uint64_t rest = bytes % unit.bytes * 100;
    const std::uint64_t hundredths = bytes / unit.bytes * 100 + (rest + (is_up ? unit.bytes - 1 : 0)) / unit.bytes;
    std::snprintf(text, sizeof text, "%" PRIu64 ".%02" PRIu64 " %s", hundredths / 100, hundredths % 100, unit.name);
    return text;
  }
  std::snprintf(text, sizeof text, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
  return text;
}
}  // namespace

std::string human_bytes(std::uint64_t bytes) { return text_of(bytes, false); }

std::string human_bytes_up(std::uint64_t bytes) { return text_of(bytes, true); }

std::string human_address(std::uint64_t address) {
  char text[2 + 16 + 1];
  std::snprintf(text, sizeof text, "0x%" PRIx64, address);
  return text;
}

}  // namespace cupool::observe
