// The name of this user's folder in shared memory is another's: a folder that others may write to, a link, a file. Nothing is put there or read
// from there; one line says so, the report too; memory cannot be exported; the rest works. (The runner removes the folder only if it is empty.)
//! native skip
//! check c["allocations"] == 1 and len([w for w in report["data_quality"]["warnings"] if "private folder" in w]) == 1
//! stderr cupool\[<pid>\]: warning: no live page: /dev/shm/cupool-6401\d is not this user's private folder
//! stderr cupool\[<pid>\]: warning: cuIpcGetMemHandle fails: the list of exported blocks in /dev/shm cannot be written
//! check "cuIpcGetMemHandle(&handle, block): 2" in out
//! case folder_of_another
//! uid 64010
//! needs not os.path.lexists("/dev/shm/cupool-64010")
//! setup os.mkdir("/dev/shm/cupool-64010") or os.chmod("/dev/shm/cupool-64010", 0o777)
//! check not os.path.exists("/dev/shm/cupool-64010")
//! case folder_for_all
//! uid 64011
//! needs not os.path.lexists("/dev/shm/cupool-64011")
//! setup os.mkdir("/dev/shm/cupool-64011") or os.chown("/dev/shm/cupool-64011", 64011, 64011) or os.chmod("/dev/shm/cupool-64011", 0o770)
//! check not os.path.exists("/dev/shm/cupool-64011")
//! case link
//! uid 64012
//! needs not os.path.lexists("/dev/shm/cupool-64012")
//! setup (scratch / "elsewhere").mkdir(mode=0o700) or os.symlink(scratch / "elsewhere", "/dev/shm/cupool-64012")
//! check os.listdir(folder.parent / "elsewhere") == [] and os.unlink("/dev/shm/cupool-64012") is None
//! case file
//! uid 64013
//! needs not os.path.lexists("/dev/shm/cupool-64013")
//! setup open("/dev/shm/cupool-64013", "w").write("x")
//! check open("/dev/shm/cupool-64013").read() == "x" and os.unlink("/dev/shm/cupool-64013") is None
//! case pipe
//! uid 64014
//! needs not os.path.lexists("/dev/shm/cupool-64014")
//! seconds 10
//! setup os.mkfifo("/dev/shm/cupool-64014")
//! check os.unlink("/dev/shm/cupool-64014") is None
#include "victim.h"

int main(void) {
  enter_device(0);
  CUipcMemHandle handle;
  const CUdeviceptr block = allocate(MIB);
  SAY(cuIpcGetMemHandle(&handle, block));
  return 0;
}
