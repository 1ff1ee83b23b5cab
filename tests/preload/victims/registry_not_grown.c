// No place has room for a moment where the list of exported blocks grows; the program closes what it does not know, and its own file gets the number. Nothing is written into that file.
//! env CUPOOL_BACKING=segments
//! native skip
//! stderr cupool\[<pid>\]: warning: cuIpcGetMemHandle fails: the list of exported blocks can be written neither in /dev/shm nor in /tmp
//! check "registry found 1" in out and "17 bytes, changed 0" in out
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "victim.h"

static int g_is_full;

__attribute__((visibility("default"))) int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (!g_is_full) return (int)syscall(SYS_fallocate, file, mode, offset, bytes);
  errno = ENOSPC;
  return -1;
}
__attribute__((visibility("default"))) int fallocate64(int file, int mode, off_t offset, off_t bytes) { return fallocate(file, mode, offset, bytes); }

static int find_registry(void) {
  DIR* files = opendir("/proc/self/fd");
  int found = -1;
  for (struct dirent* one; files != NULL && (one = readdir(files)) != NULL;) {
    char target[300] = "";
    if (readlinkat(dirfd(files), one->d_name, target, sizeof target - 1) > 0 && strstr(target, "/ipc.") != NULL) found = atoi(one->d_name);
  }
  closedir(files);
  return found;
}

int main(void) {
  static const char kData[] = "my data, my data";
  CUipcMemHandle handle;
  enter_device(0);
  const CUdeviceptr block = allocate(4 * MIB);
  MUST(cuIpcGetMemHandle(&handle, block));
  const int registry = find_registry();
  g_is_full = 1;
  CUresult refused = CUDA_SUCCESS;
  for (int i = 0; i < 5000 && refused == CUDA_SUCCESS; ++i) refused = cuIpcGetMemHandle(&handle, allocate(512));
  g_is_full = 0;
  const int mine = open("precious.txt", O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (write(mine, kData, sizeof kData) != sizeof kData || registry < 0 || dup2(mine, registry) < 0) return 2;
  cuIpcGetMemHandle(&handle, allocate(512));
  struct stat facts;
  char back[sizeof kData] = "";
  if (fstat(mine, &facts) != 0 || pread(mine, back, sizeof back, 0) < 0) return 3;
  printf("registry found %d, refused %d\n%d bytes, changed %d\n", registry >= 0, (int)refused, (int)facts.st_size,
         memcmp(back, kData, sizeof kData) != 0);
  return 0;
}
