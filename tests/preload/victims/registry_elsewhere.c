// /dev/shm is full, as a container's small one is when loaders of data have filled it: blocks can be exported all the same, and nothing of it stays at the end.
//! env CUPOOL_BACKING=segments
//! native skip
//! check "exported 0, in /tmp 1" in out
//! check not __import__("glob").glob("/tmp/cupool-%d/ipc.%d.*" % (os.geteuid(), pid))
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

#include "victim.h"

static int lies_under(int folder, const char* name, const char* start) {
  char target[300] = "";
  return readlinkat(folder, name, target, sizeof target - 1) > 0 && strncmp(target, start, strlen(start)) == 0 && strstr(target, "/ipc.") != NULL;
}

// Before libc's in the order of symbols.
__attribute__((visibility("default"))) int fallocate(int file, int mode, off_t offset, off_t bytes) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  if (!lies_under(AT_FDCWD, name, "/dev/shm/")) return (int)syscall(SYS_fallocate, file, mode, offset, bytes);
  errno = ENOSPC;
  return -1;
}
__attribute__((visibility("default"))) int fallocate64(int file, int mode, off_t offset, off_t bytes) { return fallocate(file, mode, offset, bytes); }

int main(void) {
  CUipcMemHandle handle;
  enter_device(0);
  const CUresult exported = cuIpcGetMemHandle(&handle, allocate(4 * MIB));
  DIR* files = opendir("/proc/self/fd");
  int is_in_tmp = 0;
  for (struct dirent* one; files != NULL && (one = readdir(files)) != NULL;) is_in_tmp |= lies_under(dirfd(files), one->d_name, "/tmp/");
  closedir(files);
  printf("exported %d, in /tmp %d\n", (int)exported, is_in_tmp);
  return 0;
}
