// PageHeap: access for other devices, which cuMemAlloc memory gives by cuCtxEnablePeerAccess alone. See page_heap.hpp.
#include <new>
#include <vector>

#include "pool/device/context_pool.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

/// The mapped runs of neighbouring handles: access is set for each run with one call.
std::vector<PageHeap::Span> PageHeap::mapped_runs() const {
  std::vector<Span> runs;
  for_each_mapped([&](const MappedHandle& handle) {
    if (!runs.empty() && runs.back().end == handle.address) runs.back().end = handle.end();
    else runs.push_back({handle.address, handle.end()});
  });
  return runs;
}

/// Nothing is mapped or unmapped meanwhile.
Status PageHeap::share(DeviceState& device, int ordinal) {
  if (!await(device, [this] { return !supplying_ && releasing_ == 0; })) return Error{CUDA_ERROR_OUT_OF_MEMORY, "another thread is in the driver"};
  std::vector<Span> runs;
  try {
    runs = mapped_runs();
    if (!memory_->allow(ordinal)) return {};
  } catch (const std::bad_alloc&) {
    return Error{CUDA_ERROR_OUT_OF_MEMORY, "host memory"};
  }
  begin_turn(device);
  sharing_ = true;
  CUresult code = CUDA_SUCCESS;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    for (const Span& run : runs)
      if (code == CUDA_SUCCESS) code = memory_->set_access(run.begin, run.end - run.begin);
    if (code != CUDA_SUCCESS) memory_->disallow();
  }
  supplying_ = sharing_ = false;
  charge(device);
  return code == CUDA_SUCCESS ? Status{} : Error{code, "cuMemSetAccess"};
}

}  // namespace cupool::device
