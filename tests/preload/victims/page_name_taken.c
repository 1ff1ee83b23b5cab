// The name of this user's folder in shared memory is another's: a folder that others may write to, a link, a file. Nothing is put there or read
// from there: one of a name that nobody could foresee stands in for it, for the live page and for exports, and is used again by the next process.
// (The runner removes a folder of the usual name only if it is empty.)
//! native skip
//! check c["allocations"] == 1 and not [w for w in report["data_quality"]["warnings"] if "page" in w]
//! check out.splitlines()[:2] == ["live page: 1", "list of exports: 1"] and err == ""
//! check "cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS): 0" in out and "opened: 1234567" in out
//! case folder_of_another
//! uid 64010
//! needs not glob("/dev/shm/cupool-64010*")
//! setup os.mkdir("/dev/shm/cupool-64010") or os.chmod("/dev/shm/cupool-64010", 0o777)
//! check not os.path.exists("/dev/shm/cupool-64010")
//! check [(os.stat(x).st_uid, os.stat(x).st_mode & 0o777, os.rmdir(x)) for x in glob("/dev/shm/cupool-64010.*")] == [(64010, 0o700, None)]
//! case folder_for_all
//! uid 64011
//! needs not glob("/dev/shm/cupool-64011*")
//! setup os.mkdir("/dev/shm/cupool-64011") or os.chown("/dev/shm/cupool-64011", 64011, 64011) or os.chmod("/dev/shm/cupool-64011", 0o770)
//! check not os.path.exists("/dev/shm/cupool-64011")
//! check [(os.stat(x).st_uid, os.stat(x).st_mode & 0o777, os.rmdir(x)) for x in glob("/dev/shm/cupool-64011.*")] == [(64011, 0o700, None)]
//! case link
//! uid 64012
//! needs not glob("/dev/shm/cupool-64012*")
//! setup (scratch / "elsewhere").mkdir(mode=0o700) or os.symlink(scratch / "elsewhere", "/dev/shm/cupool-64012")
//! check os.listdir(folder.parent / "elsewhere") == [] and os.unlink("/dev/shm/cupool-64012") is None
//! check [(os.stat(x).st_uid, os.stat(x).st_mode & 0o777, os.rmdir(x)) for x in glob("/dev/shm/cupool-64012.*")] == [(64012, 0o700, None)]
//! case file
//! uid 64013
//! needs not glob("/dev/shm/cupool-64013*")
//! setup open("/dev/shm/cupool-64013", "w").write("x")
//! check open("/dev/shm/cupool-64013").read() == "x" and os.unlink("/dev/shm/cupool-64013") is None
//! check [(os.stat(x).st_uid, os.stat(x).st_mode & 0o777, os.rmdir(x)) for x in glob("/dev/shm/cupool-64013.*")] == [(64013, 0o700, None)]
//! case pipe
//! uid 64014
//! needs not glob("/dev/shm/cupool-64014*")
//! seconds 10
//! setup os.mkfifo("/dev/shm/cupool-64014")
//! check os.unlink("/dev/shm/cupool-64014") is None
//! check [(os.stat(x).st_uid, os.stat(x).st_mode & 0o777, os.rmdir(x)) for x in glob("/dev/shm/cupool-64014.*")] == [(64014, 0o700, None)]
//! case stand_ins
//! uid 64015
//! needs not glob("/dev/shm/cupool-64015*")
//! setup [os.mkdir(f"/dev/shm/cupool-64015{end}") or os.chmod(f"/dev/shm/cupool-64015{end}", 0o777) for end in ("", ".AAAAAA")]
//! setup os.mkdir("/dev/shm/cupool-64015.mine00", 0o700) or os.chown("/dev/shm/cupool-64015.mine00", 64015, 64015)
//! check not os.path.exists("/dev/shm/cupool-64015") and os.rmdir("/dev/shm/cupool-64015.AAAAAA") is None
//! check [(os.stat(x).st_uid, os.stat(x).st_mode & 0o777, os.rmdir(x)) for x in glob("/dev/shm/cupool-64015.*")] == [(64015, 0o700, None)]
#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "victim.h"

/* Files in all folders of ours, whose names begin with `start`. */
static int files(const char* start) {
  char ours[64], path[512];
  int found = 0;
  snprintf(ours, sizeof ours, "cupool-%u", (unsigned)geteuid());
  DIR* shared = opendir("/dev/shm");
  for (struct dirent* entry; shared != NULL && (entry = readdir(shared)) != NULL;) {
    struct stat facts;
    snprintf(path, sizeof path, "/dev/shm/%s", entry->d_name);
    if (strncmp(entry->d_name, ours, strlen(ours)) != 0 || lstat(path, &facts) != 0 || !S_ISDIR(facts.st_mode) || facts.st_uid != geteuid()) continue;
    DIR* folder = opendir(path);
    for (struct dirent* file; folder != NULL && (file = readdir(folder)) != NULL;) found += strncmp(file->d_name, start, strlen(start)) == 0;
    closedir(folder);
  }
  closedir(shared);
  return found;
}

static int opens(int from) {
  CUipcMemHandle handle;
  CUdeviceptr block = 0;
  unsigned word = 0;
  if (read(from, &handle, sizeof handle) != sizeof handle) return 1;
  enter_device(0);
  if (SAY(cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) != 0) return 1;
  MUST(cuMemcpyDtoH(&word, block, sizeof word));
  printf("opened: %u\n", word);
  return SAY(cuIpcCloseMemHandle(block));
}

int main(void) {
  int pipes[2];
  if (pipe(pipes) != 0) return 98;
  const pid_t child = fork();
  if (child == 0) return opens(pipes[0]);
  enter_device(0);
  CUipcMemHandle handle;
  char page[32];
  int status = 0;
  const CUdeviceptr block = allocate(MIB);
  MUST(cuMemsetD32(block, 1234567, 1));
  MUST(cuCtxSynchronize());
  MUST(cuIpcGetMemHandle(&handle, block));
  snprintf(page, sizeof page, "%d.", (int)getpid());
  printf("live page: %d\nlist of exports: %d\n", files(page), files("ipc."));
  fflush(stdout);
  if (write(pipes[1], &handle, sizeof handle) != sizeof handle || waitpid(child, &status, 0) != child) return 97;
  return WEXITSTATUS(status);
}
