// The host has its own spdlog, fmt and libstdc++ functions, under the very names that our library uses inside: ours are
// hidden, so none of these is ever called by us (each would abort).
//! env CUPOOL_POLCIY=makes-us-log
//! stderr cupool\[<pid>\]: warning: .*
//! check c["allocations"] == 1
#include <string>

#include "victim.h"

namespace spdlog {
struct logger {
  virtual ~logger() { abort(); }
  [[gnu::used]] virtual void sink_it_() { abort(); }
  [[gnu::used]] void flush() { abort(); }
};
[[gnu::used]] void drop_all() { abort(); }
[[gnu::used]] void* default_logger_raw() { abort(); }
namespace details {
struct registry {
  [[gnu::used]] static registry& instance() { abort(); }
};
}  // namespace details
}  // namespace spdlog
namespace fmt {
inline namespace v9 {
[[gnu::used]] std::string vformat(const char*, int) { abort(); }
}  // namespace v9
}  // namespace fmt

int main() {
  enter_device(0);
  allocate(MIB);
  return 0;
}
