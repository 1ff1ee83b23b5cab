// Result<T>: a value, or the CUresult that a driver call returned and where.
//
// Errors keep the driver's own code: nothing here translates one into another.
// Thread rule: a plain value, owned by one thread.
#pragma once

#include <cuda.h>

#include <utility>

namespace cupool {

/// What failed: the driver's code, untranslated, and the exported symbol or the step that returned it.
struct Error {
  CUresult code = CUDA_SUCCESS;
  const char* where = "";
};

/// A value or an Error. T must be default constructible; `value()` may be read only when `ok()`.
template <class T> class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose
  Result(Error error) : error_(error) {}         // NOLINT: implicit on purpose

  bool ok() const { return error_.code == CUDA_SUCCESS; }
  explicit operator bool() const { return ok(); }
  T& value() { return value_; }
  const T& value() const { return value_; }
  const Error& error() const { return error_; }
  CUresult code() const { return error_.code; }

 private:
  T value_{};
  Error error_{};
};

/// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(error) {}  // NOLINT: implicit on purpose
  static Status from(CUresult code, const char* where) { return code == CUDA_SUCCESS ? Status{} : Status{Error{code, where}}; }

  bool ok() const { return error_.code == CUDA_SUCCESS; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return error_; }
  CUresult code() const { return error_.code; }

 private:
  Error error_{};
};

}  // namespace cupool
