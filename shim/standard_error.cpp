// See standard_error.hpp.
#include "shim/standard_error.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "shim/file_identity.hpp"

namespace cupool::shim {
namespace {

constinit std::optional<FileIdentity> g_at_load;

[[gnu::constructor]] void note_standard_error() {
  struct stat facts{};
  if (fstat(STDERR_FILENO, &facts) == 0) g_at_load.emplace(facts);
}

bool is_for_printing() {
  struct stat facts{};
  if (g_at_load && g_at_load->is_of(STDERR_FILENO)) return true;
  if (fstat(STDERR_FILENO, &facts) != 0) return false;
  const int flags = fcntl(STDERR_FILENO, F_GETFL);
  return S_ISCHR(facts.st_mode) || (flags >= 0 && ((flags & O_APPEND) != 0 || (g_at_load && (flags & O_ACCMODE) == O_WRONLY)));
}

}  // namespace

int standard_error() {
  const int error = errno;
  const bool is_it = is_for_printing();
  errno = error;
  return is_it ? STDERR_FILENO : -1;
}

}  // namespace cupool::shim
