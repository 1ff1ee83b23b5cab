// InContext: makes a context current for a scope. Calls the driver. Thread rule: lives on the stack of one thread.
#pragma once

#include "pool/driver/driver_api.hpp"

namespace cupool::shim {

class InContext {
 public:
  InContext(const DriverApi& api, CUcontext context) : api_(api), is_inside_(api.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {}
  ~InContext() {
    CUcontext popped = nullptr;
    if (is_inside_ && api_.cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS) api_.cuCtxPopCurrent_v2(&popped);  // as in ScopedContext
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  bool ok() const { return is_inside_; }  ///< false: the driver has refused, and another context is current

 private:
  const DriverApi& api_;
  bool is_inside_;
};

}  // namespace cupool::shim
