// Makes text of others (paths, names, values) fit for a line of ours: it can neither end the line nor control the terminal.
//
// Control characters become \xhh: C0 and DEL as bytes, C1 in its UTF-8 form, since U+009B begins an escape sequence, too. Everything else is left as
// it is. Pure.
#pragma once

#include <string>
#include <string_view>

namespace cupool::shim::log {

/// `text` as one line. One that is longer than kMostBytes is cut and ends in "...", because a line is one write.
inline std::string one_line(std::string_view text) {
  constexpr std::size_t kMostBytes = 8192;
  constexpr char kHex[] = "0123456789abcdef";
  const bool is_cut = text.size() > kMostBytes;
  if (is_cut) text = text.substr(0, kMostBytes);
  std::string line;
  line.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    const bool is_c1 = byte == 0xC2 && next >= 0x80 && next < 0xA0;
    if (byte >= 0x20 && byte != 0x7F && !is_c1) {
      line += text[i];
      continue;
    }
    const unsigned char shown = is_c1 ? next : byte;
    line.append("\\x").append(1, kHex[shown >> 4]).append(1, kHex[shown & 15]);
    i += is_c1 ? 1 : 0;
  }
  return is_cut ? line.append("...") : line;
}

}  // namespace cupool::shim::log
