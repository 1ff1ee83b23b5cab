// Unnoticed: while it lives, the program does not notice the system calls that we make: neither by errno, nor by a signal, nor by a cancellation that
// would unwind through us.
// Thread rule: lives on the stack of one thread.
#pragma once

#include <cerrno>

#include "pool/core/uncancelled.hpp"
#include "pool/observe/report_file.hpp"

namespace cupool::shim {

class Unnoticed {
 private:
  struct KeptErrno {
    const int value = errno;
    ~KeptErrno() { errno = value; }
  };
  KeptErrno kept_errno_;  // the first member, so that errno is restored last
  Uncancelled uncancelled_;
  observe::WriteSignals signals_;  // RLIMIT_FSIZE: an error, not a SIGXFSZ
};

}  // namespace cupool::shim
