// A signal comes while the exit report is written, and its handler ends the process by _exit: sent to the writing thread itself, as a terminal or a job's
// deadline may. Natively the exit had been over by then. The report is whole, after a return of main the handler has its say, and nobody waits for himself.
// A fault's handler is not put off: the process ends at once, and what was written of the report is no report.
//! native skip
//! seconds 7
//! exit 3
//! case returned
//! args returned
//! case exits_quickly
//! args _exit
//! exit 0
//! case fault
//! args returned fault
//! report absent
//! page any
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "victim.h"

static int signal_to_raise;

// Before libc's in the order of symbols: the library is about to write the report, into a file without a name or of a temporary one.
__attribute__((visibility("default"))) int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = va_arg(rest, unsigned);
  va_end(rest);
  const int file = (int)syscall(SYS_openat, folder, name, flags, mode);
  const int number = (flags & O_TMPFILE) == O_TMPFILE || strncmp(name, ".cupool-", 8) == 0 ? signal_to_raise : 0;
  if (number != 0) {
    signal_to_raise = 0;
    raise(number);
  }
  return file;
}

static void leave(int unused) {
  (void)unused;
  _exit(3);
}

int main(int argc, char** argv) {
  enter_device(0);
  allocate(MIB);
  signal_to_raise = argc > 2 ? SIGSEGV : SIGTERM;
  signal(signal_to_raise, leave);
  if (strcmp(argv[1], "_exit") == 0) _exit(0);
  return 0;
}
