#include "driver_calls.hpp"

#include <dlfcn.h>

#include <initializer_list>

namespace bench {
namespace {

using Count = std::uint64_t (*)(const char* exported_symbol);  // cusim_calls of tests/sim/cusim.h

std::uint64_t sum(Count count, std::initializer_list<const char*> symbols) {
  std::uint64_t calls = 0;
  for (const char* const symbol : symbols) calls += count(symbol);
  return calls;
}

}  // namespace

std::optional<DriverCalls> driver_calls() {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  static const auto count = driver == nullptr ? nullptr : reinterpret_cast<Count>(dlsym(driver, "cusim_calls"));
  if (count == nullptr) return std::nullopt;
  return DriverCalls{
      .memory = sum(count, {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemFreeAsync", "cuMemFreeAsync_ptsz",
                            "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap",
                            "cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree", "cuMemPoolTrimTo"}),
      .waits = sum(count, {"cuCtxSynchronize", "cuEventSynchronize", "cuStreamSynchronize", "cuStreamSynchronize_ptsz"}),
      .events = sum(count, {"cuCtxRecordEvent", "cuEventRecord", "cuEventRecord_ptsz", "cuEventQuery", "cuEventCreate", "cuEventDestroy_v2",
                            "cuStreamWaitEvent", "cuStreamWaitEvent_ptsz", "cuCtxWaitEvent", "cuStreamQuery", "cuStreamQuery_ptsz"})};
}

}  // namespace bench
