// What a negative number becomes, asked for outside the pool: the driver refuses it, and the report says what it was.
//! native same
//! env CUPOOL_POLICY=platform
//! ooms 3
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report) .*)
//! check c["failed_allocations"] == 3 and {o["ooms"][-1]["cause"] for o in ooms} <= {"impossible_request", "driver_refused"}
//! check [o["ooms"][-1]["requested_bytes"] for o in ooms] == [18446744073707454464] * 3
#include "victim.h"

int main(void) {
  enter_device(0);
  const size_t bytes = (size_t)0 - 2 * MIB;
  CUdeviceptr block = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties;
  CUstream stream;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  allocate(MIB);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  SAY(cuMemCreate(&handle, bytes, &properties, 0));
  SAY(cuMemAllocManaged(&block, bytes, CU_MEM_ATTACH_GLOBAL));
  SAY(cuMemAllocAsync(&block, bytes, stream));
  void* host = NULL;
  SAY(cuMemAllocHost(&host, bytes));  // no memory of the device's, and none of its out-of-memories
  return 0;
}
