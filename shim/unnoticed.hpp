// Unnoticed: while it lives, the program does not notice our system calls: not by errno, a signal, nor a cancellation that unwinds through us.
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
  KeptErrno kept_errno_;  // first, so that it is given back last
  Uncancelled uncancelled_;
  observe::WriteSignals signals_;  // RLIMIT_FSIZE: an error, not a SIGXFSZ
};

}  // namespace cupool::shim
