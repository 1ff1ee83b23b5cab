// Standard error is a pipe that is full and that nobody reads: an allocation that is refused says so to the program, and does not wait for a reader of its message.
//! seconds 20
//! case refused
//! check "refused 2" in out
//! ooms 1
//! case warned
//! env CUPOOL_LIMIT=nonsense
//! check "refused 2" in out
//! ooms 1
#include "victim.h"

#include <fcntl.h>
#include <unistd.h>

int main(void) {
  int ends[2];
  char page[4096] = {0};
  if (pipe(ends) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) return 2;
  while (write(ends[1], page, sizeof page) > 0) {}
  if (fcntl(ends[1], F_SETFL, 0) != 0 || dup2(ends[1], STDERR_FILENO) < 0) return 2;
  enter_device(0);
  CUdeviceptr block = 0;
  printf("refused %d\n", cuMemAlloc(&block, (size_t)1 << 50));
  return 0;
}
