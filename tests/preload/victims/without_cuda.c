// A process that never uses CUDA: no word, no file, no thread, whatever the variables hold.
//! report absent
//! check files == [] and sim is None
//! case plain
//! case with_garbage
//! env CUPOOL_POLICY=bananas
//! env CUPOOL_LIMIT=-1%%
//! env CUPOOL_REPORT=/nowhere/%q{
//! env CUPOOL_LOG=trace
//! env CUPOOL_LOG_FILE=/nowhere/at/all
//! env CUPOOL_NO_SUCH_THING=1
//! env CUPOOL_TRACE=/nowhere/trace
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int entries_of(const char* path) {
  DIR* folder = opendir(path);
  int count = 0;
  while (folder != NULL && readdir(folder) != NULL) ++count;
  if (folder != NULL) closedir(folder);
  return count;
}

int main(void) {
  printf("threads %d, open files %d\n", entries_of("/proc/self/task"), entries_of("/proc/self/fd"));
  return 0;
}
