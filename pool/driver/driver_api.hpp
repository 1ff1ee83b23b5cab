// DriverApi: the only way from the pool to CUDA. A struct of function pointers, one per row of
// driver_api.def, filled by shim/real_driver (the real libcuda) or by tests/sim (the simulated one).
//
// Driver: a DriverApi together with the counters of one device. Each call through it adds one to that device's
// driver_calls, by which the report tells our calls from the program's.
// Never: links libcuda, looks up symbols. Thread rule: read-only after construction; counts are atomic.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "pool/core/uncancelled.hpp"

namespace cupool {

struct DriverApi {
#define DRIVER_CALL(symbol, since, need) decltype(&::symbol) symbol = nullptr;
#include "pool/driver/driver_api.def"
#undef DRIVER_CALL
};

enum class DriverCall : std::size_t {
#define DRIVER_CALL(symbol, since, need) symbol,
#include "pool/driver/driver_api.def"
#undef DRIVER_CALL
  kCount
};

inline constexpr std::size_t kDriverCallCount = static_cast<std::size_t>(DriverCall::kCount);

/// The exported symbol of each DriverCall, in order: the keys of the report's driver_calls.
inline constexpr std::array<const char*, kDriverCallCount> kDriverCallNames = {
#define DRIVER_CALL(symbol, since, need) #symbol,
#include "pool/driver/driver_api.def"
#undef DRIVER_CALL
};

/// Number of calls made, by DriverCall. Plain storage, because it lies in the live page where there is one.
using DriverCallCounts = std::array<std::atomic<std::uint64_t>, kDriverCallCount>;

/// Counted calls: `driver.cuMemAlloc_v2(&p, n)` counts the call and makes it. Both `api` and `counts` must outlive it.
/// Precondition of each call: the function is not null. For OPTIONAL rows ask `driver.has_<symbol>()` first.
class Driver {
 public:
  Driver(const DriverApi& api, DriverCallCounts& counts) : api_(&api), counts_(&counts) {}

#define DRIVER_CALL(symbol, since, need)                                                              \
  template <class... Args> CUresult symbol(Args... args) const {                                      \
    (*counts_)[static_cast<std::size_t>(DriverCall::symbol)].fetch_add(1, std::memory_order_relaxed); \
    const Uncancelled uncancelled;                                                                    \
    return api_->symbol(args...);                                                                     \
  }                                                                                                   \
  bool has_##symbol() const { return api_->symbol != nullptr; }
#include "pool/driver/driver_api.def"
#undef DRIVER_CALL

  const DriverApi& api() const { return *api_; }

 private:
  const DriverApi* api_;
  DriverCallCounts* counts_;
};

}  // namespace cupool
