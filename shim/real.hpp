// Real<Signature>: the real driver function behind one hook, and what a body needs to know of the hook.
//
// Remembers its result, so that the exception barrier (hooked.hpp) never makes a call with side effects twice.
// Thread rule: lives on the stack of one hooked call.
#pragma once

#include <cuda.h>

#include "pool/core/uncancelled.hpp"

namespace cupool::shim {

template <class Signature> class Real;

template <class... Args> class Real<CUresult(Args...)> {
 public:
  using Function = CUresult (*)(Args...);

  Real(Function function, const char* symbol, bool is_per_thread) : function_(function), symbol_(symbol), is_per_thread_(is_per_thread) {}

  /// Calls the driver, with thread cancellation held off.
  CUresult operator()(Args... args) const {
    const Uncancelled uncancelled;
    result_ = function_(args...);
    was_called_ = true;
    return result_;
  }

  /// Calls the driver with nothing of ours around it: the thread can be cancelled where the driver lets it. The result is not remembered.
  CUresult call_plainly(Args... args) const { return function_(args...); }

  const char* symbol() const { return symbol_; }         ///< a literal: the exported symbol that the program called
  bool is_per_thread() const { return is_per_thread_; }  ///< stream 0 means this thread's default stream
  bool was_called() const { return was_called_; }
  CUresult result() const { return result_; }

 private:
  Function function_;
  const char* symbol_;
  bool is_per_thread_;
  mutable bool was_called_ = false;
  mutable CUresult result_ = CUDA_SUCCESS;
};

}  // namespace cupool::shim
