// No standard streams, as a daemon's, and fewer descriptors allowed than the library's usual numbers: what the program prints to whatever has number 1 or 2 reaches neither
// the live page nor the trace. Else the page's figures would be text, and the memory that is free what that says.
//! env CUPOOL_TRACE=trace.%p
//! native skip
//! stderr* .*
//! check (lambda text: text.split()[0] == text.split()[1])(open(folder / "out").read())
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "victim.h"

int main(void) {
  const struct rlimit few = {256, 256};
  const int out = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (out < 0 || dup2(out, 50) != 50 || setrlimit(RLIMIT_NOFILE, &few) != 0) return 2;
  for (int i = 0; i < 50; ++i) close(i);
  size_t before = 0, after = 0, total = 0;
  enter_device(0);
  allocate(MIB);
  MUST(cuMemGetInfo(&before, &total));
  static const char kText[] = "a line of the program's, for whoever has that number\n";
  for (int i = 0; i < 100000; ++i)
    for (int number = 0; number <= 2; ++number)
      if (write(number, kText, sizeof kText - 1) < 0) break;
  MUST(cuMemGetInfo(&after, &total));
  dprintf(50, "%zu %zu\n", before, after);
  return 0;
}
