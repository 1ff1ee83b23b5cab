// What holds under every policy, free mode and number of devices.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

struct Setting {
  const char* name;
  config::Policy policy;
  config::IpcMode ipc;
  config::FreeMode free;
  int devices;
  const char* driver_version;
  config::Backing backing = config::Backing::segments;
};

std::vector<Setting> every_setting() {
  using config::FreeMode;
  using config::IpcMode;
  using config::Policy;
  std::vector<Setting> settings;
  for (const int devices : {1, 2})
    for (const FreeMode free : {FreeMode::deferred, FreeMode::sync, FreeMode::immediate}) {
      settings.push_back({"grow", Policy::grow, IpcMode::automatic, free, devices, nullptr});
      settings.push_back({"preallocate", Policy::preallocate, IpcMode::automatic, free, devices, nullptr});
      settings.push_back({"grow, pages", Policy::grow, IpcMode::automatic, free, devices, nullptr, config::Backing::pages});
      settings.push_back({"preallocate, pages", Policy::preallocate, IpcMode::automatic, free, devices, nullptr, config::Backing::pages});
      settings.push_back({"async", Policy::async, IpcMode::automatic, free, devices, nullptr});
      settings.push_back({"platform", Policy::platform, IpcMode::automatic, free, devices, nullptr});
      settings.push_back({"native IPC", Policy::grow, IpcMode::native, free, devices, nullptr});
      settings.push_back({"grow, old driver", Policy::grow, IpcMode::automatic, free, devices, "11040"});
    }
  return settings;
}

RigOptions options_of(const Setting& setting) {
  RigOptions options;
  options.devices = setting.devices;
  options.driver_version = setting.driver_version;
  options.pool.policy = setting.policy;
  options.pool.ipc = setting.ipc;
  options.pool.free = setting.free;
  options.pool.backing = setting.backing;
  if (setting.policy == config::Policy::preallocate) options.pool.preallocate = config::parse_amount("75%");
  return options;
}

#define CAPTURE_SETTING(setting) \
  INFO((setting).name << ", free mode " << static_cast<int>((setting).free) << ", " << (setting).devices << " device(s)")

std::vector<unsigned char> pattern_of(std::size_t bytes, unsigned seed) {
  constexpr std::size_t kPeriod = 256;  // byte i is seed * 31 + i * 7
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < std::min(bytes, kPeriod); ++i) data[i] = static_cast<unsigned char>(seed * 31 + i * 7);
  for (std::size_t done = kPeriod; done < bytes; done *= 2) std::memcpy(data.data() + done, data.data(), std::min(done, bytes - done));
  return data;
}

/// Every block is an allocation of the driver's, so a freed one is the driver's again.
bool is_native(const Setting& setting) {
  return setting.policy == config::Policy::platform || setting.policy == config::Policy::async || setting.ipc == config::IpcMode::native;
}

/// Under `async` a block may be deferred like a pooled one, and is the driver's again when its work is over.
bool goes_back_at_once(const Setting& setting) {
  return is_native(setting) && (setting.policy != config::Policy::async || setting.free != config::FreeMode::deferred);
}
/// Other devices' contexts have no access to the driver's pool, nor to mapped memory.
bool needs_own_device(const Setting& setting) { return setting.policy == config::Policy::async || setting.backing == config::Backing::pages; }

}  // namespace

TEST_CASE("a block is aligned to 512 bytes, holds its bytes, and answers for every address in it") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    for (int device = 0; device < setting.devices; ++device) {
      rig.use(device);
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{511}, std::size_t{512}, std::size_t{513}, 32 * kKiB, 3 * kMiB + 1}) {
        const CUdeviceptr block = rig.allocate(bytes);
        CHECK(block % 512 == 0);
        for (const std::size_t offset : {std::size_t{0}, bytes / 2, bytes - 1}) {
          BlockView view;
          REQUIRE(rig.pools().find(block + offset, &view) == Ownership::live);
          CHECK(view.base == block);
          CHECK(view.bytes == bytes);
          CHECK(view.context == rig.context(device));
          CHECK(view.device == device);
          CHECK(view.region_base <= block);
          CHECK(view.region_base + view.region_bytes >= block + bytes);
        }
        CHECK(rig.pools().owns(block));
        const auto data = pattern_of(bytes, 3);
        std::vector<unsigned char> back(bytes);
        REQUIRE(cuMemcpyHtoD_v2(block, data.data(), bytes) == CUDA_SUCCESS);
        REQUIRE(cuMemcpyDtoH_v2(back.data(), block, bytes) == CUDA_SUCCESS);
        CHECK(data == back);
        rig.free(block);
      }
    }
  }
}

TEST_CASE("buffer ids are unique and never the driver's") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    std::set<std::uint64_t> ids;
    for (int i = 0; i < 100; ++i) {
      rig.use(i % setting.devices);
      const CUdeviceptr block = rig.allocate(1000);
      BlockView view;
      REQUIRE(rig.pools().find(block, &view) == Ownership::live);
      CHECK(view.buffer_id >> 63 == 1);
      CHECK(ids.insert(view.buffer_id).second);
      if (i % 3 != 0) rig.free(block);
    }
  }
}

TEST_CASE("live blocks never overlap and keep their data, whatever is allocated and freed around them") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    std::mt19937 random(7);
    struct Held {
      std::size_t bytes;
      unsigned seed;
      int device;
    };
    std::map<CUdeviceptr, Held> held;
    for (unsigned step = 0; step < 400; ++step) {
      const int device = static_cast<int>(random() % static_cast<unsigned>(setting.devices));
      rig.use(device);
      if (held.size() < 40 || random() % 2 == 0) {
        const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 2 * kMiB : 20 * kKiB);
        const CUdeviceptr block = rig.allocate(bytes);
        const auto after = held.lower_bound(block);
        if (after != held.end()) REQUIRE(block + bytes <= after->first);
        if (after != held.begin()) REQUIRE(std::prev(after)->first + std::prev(after)->second.bytes <= block);
        held[block] = {bytes, step, device};
        const auto data = pattern_of(std::min<std::size_t>(bytes, 256), step);
        REQUIRE(cuMemcpyHtoD_v2(block, data.data(), data.size()) == CUDA_SUCCESS);
      } else {
        auto victim = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
        const auto data = pattern_of(std::min<std::size_t>(victim->second.bytes, 256), victim->second.seed);
        std::vector<unsigned char> back(data.size());
        if (needs_own_device(setting)) rig.use(victim->second.device);
        REQUIRE(cuMemcpyDtoH_v2(back.data(), victim->first, back.size()) == CUDA_SUCCESS);
        REQUIRE(data == back);
        rig.free(victim->first);
        held.erase(victim);
      }
    }
    REQUIRE(rig.pools().check().empty());
    for (const auto& [block, what] : held) rig.free(block);
    std::uint64_t live_bytes = 0;
    for (int device = 0; device < setting.devices; ++device) live_bytes += now(rig.counters(device).live_bytes);
    CHECK(live_bytes == 0);
  }
}

TEST_CASE("counters say what happened") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    const CUdeviceptr a = rig.allocate(1000);
    const CUdeviceptr b = rig.allocate(5000);
    observe::Counters& counters = rig.counters();
    CHECK(now(counters.live_blocks) == 2);
    CHECK(now(counters.live_bytes) == 1024 + 5120);
    CHECK(now(counters.requested_bytes) == 6000);
    CHECK(now(counters.allocations) == 2);
    CHECK(now(counters.reserved_bytes) >= 1024 + 5120);
    rig.free(a);
    rig.free(b);
    CHECK(now(counters.live_blocks) == 0);
    CHECK(now(counters.live_bytes) == 0);
    CHECK(now(counters.requested_bytes) == 0);
    CHECK(peak(counters.live_bytes) == 1024 + 5120);
    CHECK(now(counters.frees) == 2);
    CHECK(now(counters.failed_allocations) == 0);
  }
}

TEST_CASE("a second free of a block, and a free of its inside, are refused and harm nothing") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    const CUdeviceptr keeper = rig.allocate(4096);
    const CUdeviceptr block = rig.allocate(4096);
    CHECK(rig.pools().free(block + 512).outcome == FreeOutcome::invalid);
    rig.free(block);
    const bool native = goes_back_at_once(setting);
    // A native block is the driver's again, and the driver answers for it; a pooled one must never reach the driver.
    CHECK(rig.pools().free(block).outcome == (native ? FreeOutcome::unknown : FreeOutcome::invalid));
    CHECK(rig.pools().find(keeper, nullptr) == Ownership::live);
    CHECK(rig.pools().find(block, nullptr) == (native ? Ownership::unknown : Ownership::vacant));
    CHECK(now(rig.counters().frees) == 1);
  }
}

TEST_CASE("memory that went back to the driver is not ours any more, and freed pooled memory still is") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    const CUdeviceptr block = rig.allocate(8 * kMiB);
    rig.free(block);
    const bool native = goes_back_at_once(setting);
    CHECK(rig.pools().owns(block) == !native);
  }
}

TEST_CASE("a pointer that is not ours is left to the driver") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    rig.allocate(4096);
    CUdeviceptr foreign = 0;
    REQUIRE(cuMemAlloc_v2(&foreign, 8 * kMiB) == CUDA_SUCCESS);
    CHECK(rig.pools().find(foreign + 4 * kMiB, nullptr) == Ownership::unknown);
    CHECK(rig.pools().free(foreign).outcome == FreeOutcome::unknown);
    CHECK(now(rig.counters().foreign_frees) == 1);
    CHECK(cuMemFree_v2(foreign) == CUDA_SUCCESS);
  }
}

TEST_CASE("a block can be freed with another device's context current") {
  for (const Setting& setting : every_setting()) {
    if (setting.devices < 2) continue;
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    const CUdeviceptr block = rig.allocate(3 * kMiB);
    rig.use(1);
    rig.free(block);
    CHECK(now(rig.counters(0).frees) == 1);
    CHECK(now(rig.counters(1).frees) == 0);
    CUcontext current = nullptr;
    REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == rig.context(1));
  }
}

TEST_CASE("a request that no device could hold is out of memory, and the next one works") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    for (const std::size_t bytes : {std::size_t{2} << 40, SIZE_MAX, SIZE_MAX - 600}) {
      CHECK(rig.try_allocate(bytes).code() == CUDA_ERROR_OUT_OF_MEMORY);
      CHECK(rig.pools().take_untold_oom() != 0);
    }
    CHECK(now(rig.counters().failed_allocations) == 3);
    rig.free(rig.allocate(4096));
  }
}

TEST_CASE("the limit is never passed, and what it refuses can be had after a free") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    RigOptions options = options_of(setting);
    options.pool.limit.all = config::parse_amount("256MiB");
    Rig rig(options);
    const CUdeviceptr most = rig.allocate(200 * kMiB);
    CHECK(rig.try_allocate(100 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cusim_used_bytes(0) <= 256 * kMiB);
    rig.free(most);
    // The simulated driver's own pool gives a range of 200 MiB out as a whole.
    const std::uint64_t half_bytes = (setting.policy == config::Policy::async ? 90 : 100) * kMiB;
    const CUdeviceptr a = rig.allocate(half_bytes);
    const CUdeviceptr b = rig.allocate(half_bytes);
    CHECK(cusim_used_bytes(0) <= 256 * kMiB);
    rig.free(a);
    rig.free(b);
  }
}

TEST_CASE("a context that dies takes its blocks along, and its successor under the same handle works") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    const CUdeviceptr live = rig.allocate(5 * kMiB);
    const CUdeviceptr freed = rig.allocate(3 * kMiB);
    rig.free(freed);
    const std::uint64_t before = cusim_calls("cuMemFree_v2");
    rig.reset_device(0);
    CHECK(cusim_calls("cuMemFree_v2") == before);
    CHECK(now(rig.counters().live_bytes) == 0);
    CHECK(now(rig.counters().deferred_bytes) == 0);
    CHECK(now(rig.counters().reserved_bytes) == 0);
    CHECK(rig.pools().find(live, nullptr) == Ownership::unknown);
    CHECK(rig.pools().free(live).outcome == FreeOutcome::unknown);
    CUcontext again = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(again) == CUDA_SUCCESS);
    rig.pools().context_seen(again, 0);
    rig.free(rig.allocate(5 * kMiB));
    REQUIRE(rig.pools().check().empty());
  }
}

TEST_CASE("a snapshot's address map is contiguous and agrees with the counters") {
  for (const Setting& setting : every_setting()) {
    CAPTURE_SETTING(setting);
    Rig rig(options_of(setting));
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 30; ++i) blocks.push_back(rig.allocate(700 * static_cast<std::size_t>(i + 1)));
    for (std::size_t i = 0; i < blocks.size(); i += 3) rig.free(blocks[i]);
    const observe::Snapshot snapshot = rig.snapshot();
    REQUIRE(snapshot.complete);
    const observe::DeviceSnapshot& device = snapshot.devices.at(0);
    std::uint64_t live = 0, requested = 0, region_bytes = 0;
    std::uint64_t end = 0;
    std::uint32_t region = UINT32_MAX;
    for (const observe::BlockRow& row : device.blocks) {
      if (row.region != region) {
        if (region != UINT32_MAX) CHECK(end == device.regions[region].address + device.regions[region].bytes);
        region = row.region;
        end = device.regions[region].address;
        region_bytes += device.regions[region].bytes;
      }
      CHECK(row.address == end);
      end = row.address + row.bytes;
      if (row.state == observe::BlockState::live) {
        live += row.bytes;
        requested += row.requested_bytes;
        CHECK(row.allocated_unix_ns != 0);
      }
    }
    CHECK(live == now(rig.counters().live_bytes));
    CHECK(requested == now(rig.counters().requested_bytes));
    const std::uint64_t idle_bytes = setting.policy == config::Policy::async ? device.now.free_bytes : 0;  // the driver's to place
    CHECK(region_bytes + idle_bytes == now(rig.counters().reserved_bytes));
    CHECK(device.now.live_bytes == live);
    CHECK(device.at_peak.live_bytes == peak(rig.counters().live_bytes));
    const bool native = setting.policy == config::Policy::platform || setting.ipc == config::IpcMode::native;
    CHECK(device.backing == (native                                      ? "native"
                             : setting.policy == config::Policy::async   ? "driver_pool"
                             : setting.backing == config::Backing::pages ? "pages"
                                                                         : "segments"));
    CHECK(device.policy == (native ? "platform" : config::name_of(setting.policy)));
  }
}
