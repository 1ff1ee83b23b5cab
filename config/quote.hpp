// Foreign text made fit for one line of a log: no control characters, no terminal tricks, not too long.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cupool::config {

/// Printable ASCII as it is; backslash, control characters and every other byte as \\, \n, \t, \r or \xNN. What would
/// be longer than `most` characters is cut before that and ends in "...". Precondition: most >= 8.
std::string quote(std::string_view text, std::size_t most = 80);

}  // namespace cupool::config
