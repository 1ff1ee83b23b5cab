// A process whose address space is limited (RLIMIT_AS, as some batch systems set it): the driver reserves fewer addresses than the device is large, or none. Pages lie in those that there
// are; where there are none the context is the driver's own, in stream order as well, without a look for addresses and a wait at each allocation.
//! native same
//! env CUPOOL_BACKING=pages
//! env CUSIM_MEMORY=8GiB
//! case few
//! env CUSIM_ADDRESSES=3GiB
//! check report["devices"][0]["backing"] == "pages" and report["devices"][0]["counters"].get("native_fallbacks", 0) == 0
//! check report["devices"][0]["counters"]["driver_calls"]["cuMemAddressReserve"] <= 16
//! case none
//! env CUSIM_ADDRESSES=100MiB
//! stderr cupool\[<pid>\]: warning: GPU 0: the driver reserves no addresses .*
//! check report["devices"][0]["counters"]["driver_calls"]["cuMemAddressReserve"] <= 32
#include "victim.h"

int main(void) {
  enter_device(0);
  CUstream stream = NULL;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int round = 0; round < 20; ++round) {
    CUdeviceptr blocks[12], ordered = 0;
    for (int i = 0; i < 12; ++i) blocks[i] = allocate((size_t)(i + 1) * 5 * MIB + (size_t)round * 1000);
    MUST(cuMemAllocAsync(&ordered, 3 * MIB, stream));
    MUST(cuMemFreeAsync(ordered, stream));
    for (int i = 0; i < 12; ++i) MUST(cuMemFree(blocks[i]));
  }
  puts("served");
  return 0;
}
