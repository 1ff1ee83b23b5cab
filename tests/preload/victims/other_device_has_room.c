// One device is full, another of the process's has room: the report names it, by what was last heard of it. Not where that one is full as well.
//! env CUSIM_DEVICES=2
//! env CUSIM_MEMORY=1GiB
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! check ooms[0]["ooms"][0]["cause"] == "true_exhaustion"
//! case has_room
//! args 100
//! check ooms[0]["ooms"][0]["evidence"]["other_device"] == 1 and 800 * MiB < ooms[0]["ooms"][0]["evidence"]["other_device_free_bytes"] <= 924 * MiB
//! check [s["level"] for s in ooms[0]["ooms"][0]["suggestions"] if s["rule_id"] == "other_devices"] == ["consider"] and "GPU 1, which" in err
//! case within_its_limit
//! args 100
//! env CUPOOL_LIMIT=1:200MiB
//! check ooms[0]["ooms"][0]["evidence"]["other_device_free_bytes"] == 100 * MiB and "GPU 1" not in err
//! case is_full_as_well
//! args 700
//! check not [s for s in ooms[0]["ooms"][0]["suggestions"] if s["rule_id"] == "other_devices"] and "GPU 1" not in err
#include "victim.h"

int main(int count, char** arguments) {
  if (count < 2) return 64;
  CUdeviceptr block = 0;
  enter_device(1);
  allocate(strtoull(arguments[1], NULL, 10) * MIB);
  enter_device(0);
  allocate(700 * MIB);
  printf("wanted: %d\n", cuMemAlloc(&block, 500 * MIB));
  return 0;
}
