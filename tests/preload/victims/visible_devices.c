// Devices that CUDA_VISIBLE_DEVICES hides, reorders and names: the program's ordinals count what it sees, and so do limits and preallocation;
// the UUID says which device it really was. A device that the program does not use is not touched.
//! env CUSIM_DEVICES=4
//! env CUSIM_MEMORY=8GiB,4GiB,2GiB,6GiB
//! check report is None or all("uuid %d " % x["ordinal"] + x["uuid"] in out for x in report["devices"])
//! case all
//! check [x["total_bytes"] // GiB for x in report["devices"]] == [8, 4, 2, 6]
//! case reordered
//! env CUDA_VISIBLE_DEVICES=3,1
//! check [x["total_bytes"] // GiB for x in report["devices"]] == [6, 4]
//! case by_uuid
//! env CUDA_VISIBLE_DEVICES=GPU-c0513a9d-4f22-4344-8566-778899aabb02,GPU-c0513a9d-05
//! check [x["total_bytes"] // GiB for x in report["devices"]] == [2, 8]
//! case mixed
//! env CUDA_VISIBLE_DEVICES=2,GPU-c0513a9d-05
//! check [x["total_bytes"] // GiB for x in report["devices"]] == [2, 8]
//! case ends_at_what_names_nothing
//! env CUDA_VISIBLE_DEVICES=1,-1,0
//! check [x["total_bytes"] // GiB for x in report["devices"]] == [4]
//! case ends_at_an_ambiguous_name
//! env CUDA_VISIBLE_DEVICES=1,GPU-c0513a9d
//! check [x["total_bytes"] // GiB for x in report["devices"]] == [4]
//! case named_twice
//! env CUDA_VISIBLE_DEVICES=1,1
//! report absent
//! exit 3
//! check report is None
//! case none
//! env CUDA_VISIBLE_DEVICES=
//! report absent
//! exit 3
//! case limits_follow_the_order
//! env CUDA_VISIBLE_DEVICES=3,1
//! env CUPOOL_LIMIT=0:3GiB,1:50%
//! native skip
//! check [x["limit_bytes"] // GiB for x in report["devices"]] == [3, 2]
//! check "total 0: 3072 MiB" in out and "total 1: 2048 MiB" in out and "info 1: 2048 MiB" in out
//! case only_one_is_used
//! args 1
//! env CUPOOL_LIMIT=0:3GiB,1:1GiB,2:50%
//! env CUPOOL_PREALLOCATE=50%
//! native skip
//! check [(x["ordinal"], x["limit_bytes"] // GiB, x["counters"]["reserved_bytes"]["current"] // GiB) for x in report["devices"]] == [(1, 1, 1)]
//! check [x["used_bytes"] // GiB for x in sim["devices"]] == [0, 1, 0, 0]
//! check calls("cuDevicePrimaryCtxRetain") == 1
//! stderr .*warning: CUPOOL_PREALLOCATE: GPU 1 gave 1024 MiB of 2048 MiB .*
//! case preallocated_each_for_itself
//! env CUDA_VISIBLE_DEVICES=3,2
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_PREALLOCATE=min(50%,2GiB)
//! check [x["counters"]["reserved_bytes"]["peak"] // MiB for x in report["devices"]] == [2048, 1024]
//! case mig
//! env CUSIM_MIG=1
//! env CUDA_VISIBLE_DEVICES=MIG-c0513a9d-4f22-4344-8566-778899aabb02,MIG-c0513a9d-05
//! check [(x["total_bytes"] // GiB, x["uuid"]) for x in report["devices"]] == [(2, "MIG-c0513a9d-4f22-4344-8566-778899aabb02")]
//! check " MIG " in d["name"]
//! case mig_by_number
//! env CUSIM_MIG=1
//! check [(x["total_bytes"] // GiB, x["uuid"][:4]) for x in report["devices"]] == [(8, "MIG-")]
#include "victim.h"

/* As nvidia-smi -L writes it. */
static void tell_uuid(CUdevice device) {
  char name[128];
  CUuuid uuid;
  MUST(cuDeviceGetName(name, sizeof name, device));
  MUST(cuDeviceGetUuid(&uuid, device));
  printf("uuid %d %s", device, strstr(name, " MIG ") != NULL ? "MIG-" : "GPU-");
  for (int i = 0; i < 16; ++i) printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)uuid.bytes[i]);
  printf("\n");
}

static void use(int ordinal) {
  size_t total = 0, info = 0, left = 0;
  CUdevice device;
  CUcontext context = enter_device(ordinal);
  MUST(cuDeviceGet(&device, ordinal));
  tell_uuid(device);
  MUST(cuDeviceTotalMem(&total, device));
  MUST(cuMemGetInfo(&left, &info));
  printf("total %d: %zu MiB\ninfo %d: %zu MiB\n", ordinal, total / MIB, ordinal, info / MIB);
  CUdeviceptr block = allocate(10 * MIB);
  MUST(cuMemsetD8(block, 1, 10 * MIB));
  int owner = -1;
  MUST(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
  printf("owner %d\n", owner);
  MUST(cuMemFree(block));
  MUST(context == NULL);
}

int main(int argc, char** argv) {
  int count = 0;
  if (SAY(cuInit(0)) != CUDA_SUCCESS) return 3;
  MUST(cuDeviceGetCount(&count));
  printf("%d devices\n", count);
  for (int i = 0; i < count; ++i)
    if (argc < 2 || atoi(argv[1]) == i) use(i);
  return 0;
}
