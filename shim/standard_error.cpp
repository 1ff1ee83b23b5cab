// See standard_error.hpp.
#include "shim/standard_error.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "shim/file_identity.hpp"

namespace cupool::shim {
namespace {

constinit pthread_once_t g_once = PTHREAD_ONCE_INIT;
constinit std::optional<FileIdentity> g_first;  ///< what descriptor 2 was at load; nullopt: closed

void note() {
  struct stat facts {};
  if (fstat(STDERR_FILENO, &facts) == 0) g_first.emplace(facts);
}

/// Libraries that the program is linked with are initialised before this one and may use CUDA then. So the first log line notes it, if that comes
/// first.
[[gnu::constructor]] void note_standard_error() { pthread_once(&g_once, &note); }

/// By what descriptor 2 is now; see the header.
bool is_for_printing() {
  pthread_once(&g_once, &note);
  struct stat facts {};
  if (g_first && g_first->is_of(STDERR_FILENO)) return true;
  if (fstat(STDERR_FILENO, &facts) != 0) return false;
  const int flags = fcntl(STDERR_FILENO, F_GETFL);
  return S_ISCHR(facts.st_mode) || (flags >= 0 && ((flags & O_APPEND) != 0 || (g_first && (flags & O_ACCMODE) == O_WRONLY)));
}

}  // namespace

int standard_error() {
  const int error = errno;
  const bool is_it = is_for_printing();
  errno = error;
  return is_it ? STDERR_FILENO : -1;
}

}  // namespace cupool::shim
