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
#include <signal.h>

#include "report_file.h"
#include "victim.h"

static int signal_to_raise;

static void on_report_opened(void) {
  const int number = signal_to_raise;
  signal_to_raise = 0;
  if (number != 0) raise(number);
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
