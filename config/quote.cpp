// See quote.hpp.
#include "config/quote.hpp"

namespace cupool::config {
namespace {

constexpr std::string_view kEllipsis = "...";

/// Writes how `c` is shown to `shown` (at least 4 characters); returns the length.
std::size_t show(char c, char* shown) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  shown[0] = '\\';
  switch (c) {
    case '\\': shown[1] = '\\'; return 2;
    case '\n': shown[1] = 'n'; return 2;
    case '\t': shown[1] = 't'; return 2;
    case '\r': shown[1] = 'r'; return 2;
    default: break;
  }
  if (byte >= 0x20 && byte < 0x7f) {
    shown[0] = c;
    return 1;
  }
  shown[1] = 'x';
  shown[2] = kHex[byte >> 4];
  shown[3] = kHex[byte & 15];
  return 4;
}

}  // namespace

std::string quote(std::string_view text, std::size_t most) {
  std::string quoted;
  std::size_t cut = 0;  // where the ellipsis would still fit
  for (const char c : text) {
    char shown[4];
    const std::size_t length = show(c, shown);
    if (quoted.size() + length > most) {
      quoted.resize(cut);
      return quoted.append(kEllipsis);
    }
    quoted.append(shown, length);
    if (quoted.size() + kEllipsis.size() <= most) cut = quoted.size();
  }
  return quoted;
}

}  // namespace cupool::config
