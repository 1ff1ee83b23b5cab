// What tests of ending contexts share: contexts, and a driver call that goes on only once the pool waits.
#pragma once

#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

namespace cupool::test {

inline CUcontext create(Rig& rig, int device) {
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate_v2(&context, 0, device) == CUDA_SUCCESS);
  rig.pools().context_seen(context, device, BlockLife::pool);
  return context;
}

inline std::atomic<bool> g_inside{false};     ///< a slow call is in the driver ...
inline std::atomic<bool> g_may_leave{false};  ///< ... and stays there until this

/// Lets a slow call go on once the pool waits for it. `is_patient`: what the pool waits for comes, however long the threads that bring it are kept
/// from running.
class ReleasingClock final : public Clock {
 public:
  explicit ReleasingClock(bool is_patient = false) : is_patient_(is_patient) {}
  std::uint64_t now_ns() const override { return is_patient_ ? 0 : cusim_now_ns(); }
  void pause(std::uint64_t duration_ns) override {
    g_may_leave.store(true);
    cusim_advance_ns(duration_ns);
    std::this_thread::yield();
  }

 private:
  const bool is_patient_;
};

}  // namespace cupool::test
