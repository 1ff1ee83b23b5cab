// pool_capacity FILE...: the smallest CUPOOL_LIMIT under which a recorded job completes in the real pool on the simulated
// driver, and what it costs the driver. One row per trace; the figures behind RegionGrowth's constants.
//
//   ratio  smallest limit / peak live (blocks rounded to 512 bytes), by bisection to 0.2%; frees reused at once
//   calls  cuMemAlloc + cuMemFree at 1.05 times that limit, per thousand allocations
//   free   the same without a limit: reserved / peak, and calls in all
// A figure, not a test: `ninja pool_capacity`.
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/options.hpp"
#include "pool/core/bytes.hpp"
#include "pool/device/pool_set.hpp"
#include "tests/bench/trace.hpp"
#include "tests/sim/cusim.h"
#include "tests/sim/sim_driver_api.hpp"

using namespace cupool;

namespace {

struct Outcome {
  std::uint64_t calls = 0;
  std::uint64_t reserved_peak_bytes = 0;
};

/// nullopt: out of memory. limit_bytes 0: none.
std::optional<Outcome> replay(const trace::Trace& job, std::uint64_t limit_bytes) {
  cusim_configure("MEMORY", "400GiB");
  cusim_reset();
  const DriverApi& api = cusim_driver_api();
  api.cuInit(0);
  CUcontext context = nullptr;
  api.cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
  config::Options options;
  options.free = config::FreeMode::immediate;
  options.timeline_events = 0;
  if (limit_bytes != 0) options.limit.all = config::Amount{{{false, 0, limit_bytes}}};
  const auto live = std::make_unique<observe::LiveDevice[]>(1);
  PoolSet pools(api, options, live.get(), 1);
  std::vector<CUdeviceptr> blocks(job.allocations);
  for (const trace::Event& event : job.events) {
    if (event.is_free) {
      pools.free(blocks[event.slot]);
      continue;
    }
    const Result<CUdeviceptr> block = pools.allocate(context, event.bytes, "cuMemAlloc_v2");
    if (!block.ok()) return std::nullopt;
    blocks[event.slot] = block.value();
  }
  return Outcome{cusim_calls("cuMemAlloc_v2") + cusim_calls("cuMemFree_v2"), live[0].counters.reserved_bytes.peak.load()};
}

std::uint64_t peak_bytes(const trace::Trace& job) {
  std::vector<std::uint64_t> sizes(job.allocations);
  std::uint64_t now = 0;
  std::uint64_t peak = 0;
  for (const trace::Event& event : job.events) {
    if (event.is_free) {
      now -= sizes[event.slot];
    } else {
      sizes[event.slot] = round_request(event.bytes);
      now += sizes[event.slot];
      peak = std::max(peak, now);
    }
  }
  return peak;
}

std::uint64_t smallest_limit(const trace::Trace& job, std::uint64_t peak) {
  std::uint64_t fails = peak - 1;
  std::uint64_t works = 4 * peak;
  while (works - fails > std::max<std::uint64_t>(peak / 500, 1)) {
    const std::uint64_t middle = fails + (works - fails) / 2;
    (replay(job, middle) ? works : fails) = middle;
  }
  return works;
}

}  // namespace

int main(int count, char** files) {
  std::printf("%-44s %10s %7s %7s %7s %7s\n", "trace", "peak MiB", "ratio", "calls", "free", "calls");
  for (int i = 1; i < count; ++i) {
    const trace::Trace job = trace::load(files[i]);
    const std::uint64_t peak = peak_bytes(job);
    const std::uint64_t limit = smallest_limit(job, peak);
    const std::optional<Outcome> pressed = replay(job, limit + limit / 20);
    const std::optional<Outcome> roomy = replay(job, 0);
    const std::string path = files[i];
    const std::string name = path.substr(path.rfind('/') + 1);
    const auto ratio = [&](std::uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(peak); };
    std::printf("%-44s %10" PRIu64 " %7.3f %7.1f %7.3f %7" PRIu64 "\n", name.c_str(), peak / kMiB, ratio(limit),
                pressed ? 1000.0 * static_cast<double>(pressed->calls) / static_cast<double>(job.allocations) : -1.0,
                roomy ? ratio(roomy->reserved_peak_bytes) : -1.0, roomy ? roomy->calls : 0);
    std::fflush(stdout);
  }
}
