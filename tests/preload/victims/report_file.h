/* When the library opens the file of a report: without a name, or of a temporary one. For one source file of a program. */
#ifndef REPORT_FILE_H
#define REPORT_FILE_H
#ifndef _GNU_SOURCE
#error "_GNU_SOURCE, before the first header"
#endif
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Called in the thread that has just opened it. */
static void on_report_opened(void);

/* Before libc's in the order of symbols. */
__attribute__((visibility("default"))) int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = va_arg(rest, unsigned);
  va_end(rest);
  const int file = (int)syscall(SYS_openat, folder, name, flags, mode);
  if ((flags & O_TMPFILE) == O_TMPFILE || strncmp(name, ".cupool-", 8) == 0) on_report_opened();
  return file;
}
#endif
