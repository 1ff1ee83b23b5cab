// Initialisation, devices, contexts: who is current, what dies with a context, sticky errors, the end of the driver.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "sim_fixture.hpp"
#include "tests/sim/simulator.hpp"

using sim_test::kMiB;
using sim_test::Settings;
using sim_test::Simulated;

TEST_CASE("nothing works before cuInit, and deinitialised is for ever") {
  const Settings settings{};
  int count = 0;
  CUdeviceptr address = 0;
  CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(cuMemAlloc_v2(&address, 1) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(cuInit(1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuInit(0) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&address, 1) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
  cusim_deinitialize();
  CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_DEINITIALIZED);
  CHECK(cuInit(0) == CUDA_ERROR_DEINITIALIZED);
  CHECK(cusim_violation_count() == 2);
}

TEST_CASE("no device is an error of cuInit") {
  SECTION("because there is none") {
    const Settings settings{{"NO_DEVICE", "1"}};
    CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE);
  }
  SECTION("because none is visible") {
    const Settings settings{{"CUDA_VISIBLE_DEVICES", ""}};
    CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE);
  }
}

TEST_CASE("devices differ in name and UUID, and have the sizes of the list") {
  const Simulated sim{{"DEVICES", "3"}, {"MEMORY", "8GiB,24GiB"}};
  std::set<std::string> uuids;
  for (int i = 0; i < 3; ++i) {
    CUuuid uuid{};
    std::size_t bytes = 0;
    REQUIRE(cuDeviceGetUuid_v2(&uuid, i) == CUDA_SUCCESS);
    uuids.insert(std::string(uuid.bytes, sizeof uuid.bytes));
    REQUIRE(cuDeviceTotalMem_v2(&bytes, i) == CUDA_SUCCESS);
    CHECK(bytes == (i == 0 ? 8ULL : 24ULL) << 30);
  }
  CHECK(uuids.size() == 3);
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 3) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuDeviceGet(&device, -1) == CUDA_ERROR_INVALID_DEVICE);
  int value = 0;
  CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) == CUDA_SUCCESS);
  CHECK(value == 1);
  CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses and orders by number and by UUID") {
  CUuuid second{};
  {
    const Simulated all{{"DEVICES", "3"}};
    REQUIRE(cuDeviceGetUuid_v2(&second, 1) == CUDA_SUCCESS);
  }
  const auto first_uuid = [] {
    CUuuid uuid{};
    cuDeviceGetUuid_v2(&uuid, 0);
    return uuid;
  };
  int count = 0;
  SECTION("by number") {
    const Simulated some{{"DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", "1,0"}};
    const CUuuid uuid = first_uuid();
    CHECK(std::memcmp(&uuid, &second, sizeof uuid) == 0);
    cuDeviceGetCount(&count);
    CHECK(count == 2);
  }
  SECTION("by UUID, and the list ends at what names nothing") {
    std::string text = "GPU-";
    for (const int i : {0, 1, 2, 3}) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(second.bytes[i])));
      text += digits;
    }
    // The beginning is the same for all three: the last match counts only where it is unique in its digits.
    char tail[32];
    const auto byte = [&](int i) { return static_cast<unsigned>(static_cast<unsigned char>(second.bytes[i])); };
    std::snprintf(tail, sizeof tail, "-%02x%02x", byte(4), byte(5));
    const std::string list = text + tail + ",nonsense,0";
    const Simulated some{{"DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", list.c_str()}};
    const CUuuid uuid = first_uuid();
    CHECK(std::memcmp(&uuid, &second, sizeof uuid) == 0);
    cuDeviceGetCount(&count);
    CHECK(count == 1);
  }
}

TEST_CASE("a primary context counts its holders and has one handle for ever") {
  const Settings settings{};
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  unsigned flags = 9;
  int active = 9;
  CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  CUcontext first = nullptr;
  CUcontext second = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&first, 0) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 0) == CUDA_SUCCESS);
  CHECK(first == second);
  CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  cuDevicePrimaryCtxGetState(0, &flags, &active);
  CHECK(active == 1);
  CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  cuDevicePrimaryCtxGetState(0, &flags, &active);
  CHECK(active == 0);
  CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 0) == CUDA_SUCCESS);
  CHECK(first == second);
  CHECK(cuCtxDestroy_v2(second) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("a reset frees everything of the context, and the next call says so") {
  const Simulated sim;
  const CUdeviceptr address = Simulated::allocate(4 * kMiB);
  const CUstream stream = Simulated::stream();
  const CUevent event = Simulated::event();
  REQUIRE(address != 0);
  CHECK(cusim_used_bytes(0) == 4 * kMiB);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  CUdevice device = 9;
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 0);
  CUdeviceptr other = 0;
  CHECK(cuMemAlloc_v2(&other, 1) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuEventQuery(event) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cusim_violation_count() == 3);
  CUcontext again = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
  CHECK(again == sim.context);
  CHECK(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemAlloc_v2(&other, 1) == CUDA_SUCCESS);
}

TEST_CASE("created contexts stack, and destroying one frees what it holds") {
  const Simulated sim;
  CUcontext created = nullptr;
  CUcontext current = nullptr;
  REQUIRE(cuCtxCreate_v2(&created, 0, 0) == CUDA_SUCCESS);
  cuCtxGetCurrent(&current);
  CHECK(current == created);
  REQUIRE(Simulated::allocate(2 * kMiB) != 0);
  REQUIRE(cuCtxPushCurrent_v2(sim.context) == CUDA_SUCCESS);
  REQUIRE(cuCtxPopCurrent_v2(&current) == CUDA_SUCCESS);
  CHECK(current == sim.context);
  // A context that another thread has current stays so there, and answers that it is destroyed.
  CUresult elsewhere = CUDA_SUCCESS;
  REQUIRE(cuCtxDestroy_v2(created) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  cuCtxGetCurrent(&current);
  CHECK(current == sim.context);
  std::thread([&] { elsewhere = cuCtxSetCurrent(created); }).join();
  CHECK(elsewhere == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cusim_violation_count() == 0);
  CHECK(cuCtxDestroy_v2(created) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(Simulated::last_violation() == "a context was destroyed twice");
  CHECK(cuCtxPushCurrent_v2(reinterpret_cast<CUcontext>(&current)) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("each thread has its own current context") {
  const Simulated sim;
  CUcontext seen = sim.context;
  CUdevice device = 0;
  CUresult without = CUDA_SUCCESS;
  std::thread([&] {
    cuCtxGetCurrent(&seen);
    without = cuCtxGetDevice(&device);
  }).join();
  CHECK(seen == nullptr);
  CHECK(without == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxPopCurrent_v2(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("who is current is answered while another thread is in the driver") {
  const Simulated sim;
  std::unique_lock inside(cusim::Simulator::instance().mutex);
  auto answer = std::async(std::launch::async, [] {
    CUcontext current = reinterpret_cast<CUcontext>(1);
    return cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == nullptr;
  });
  const bool is_answered = answer.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  inside.unlock();
  CHECK(is_answered);
  CHECK(answer.get());
}

TEST_CASE("who is current is a call like any other: counted, failed, refused before the start and after the end") {
  CUcontext current = nullptr;
  {
    const Settings settings{};
    CHECK(cuCtxGetCurrent(&current) == CUDA_ERROR_NOT_INITIALIZED);
  }
  const auto clock = GENERATE(as<const char*>(), "virtual", "real");  // without the driver's lock, and with it
  const Simulated sim{{"CLOCK", clock}};
  cusim_fail("cuCtxGetCurrent", 2, CUDA_ERROR_UNKNOWN, 1);
  CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  CHECK(current == sim.context);
  current = nullptr;
  CHECK(cuCtxGetCurrent(&current) == CUDA_ERROR_UNKNOWN);
  CHECK(current == nullptr);
  CHECK(cuCtxGetCurrent(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_calls("cuCtxGetCurrent") == 3);
  CUresult inner = CUDA_SUCCESS;
  const auto ask = [](void* data) {
    CUcontext seen = nullptr;
    *static_cast<CUresult*>(data) = cuCtxGetCurrent(&seen);
  };
  REQUIRE(cuLaunchHostFunc(Simulated::stream(), ask, &inner) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(inner == CUDA_ERROR_NOT_PERMITTED);
  CHECK(cusim_violation_count() == 1);
  cusim_deinitialize();
  CHECK(cuCtxGetCurrent(&current) == CUDA_ERROR_DEINITIALIZED);
  CHECK(cusim_violation_count() == 2);
}

TEST_CASE("a sticky fault of the call that asks who is current breaks that context") {
  const Simulated sim{{"FAIL", "cuCtxGetCurrent:1:700:sticky"}};
  CUcontext current = nullptr;
  CHECK(cuCtxGetCurrent(&current) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  CHECK(current == sim.context);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("no call of any thread is lost in the counts") {
  const Simulated sim;
  constexpr std::uint64_t kCalls = 2000;
  constexpr std::uint64_t kThreads = 20;  // more than there are counters of one function
  std::vector<std::thread> threads;
  const std::uint64_t before = cusim_total_calls();
  for (std::uint64_t i = 0; i < kThreads; ++i)
    threads.emplace_back([] {
      CUcontext current = nullptr;
      for (std::uint64_t call = 0; call < kCalls; ++call) cuCtxGetCurrent(&current);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(cusim_calls("cuCtxGetCurrent") == kThreads * kCalls);
  CHECK(cusim_total_calls() - before == kThreads * kCalls);
  cusim_reset();
  CHECK(cusim_calls("cuCtxGetCurrent") == 0);
  CHECK(cusim_total_calls() == 0);
}

TEST_CASE("a broken context answers with its sticky error until it is reset") {
  const Simulated sim;
  const CUevent event = Simulated::event();
  CUcontext beside = nullptr;
  CUdeviceptr address = 0;
  REQUIRE(cuCtxCreate_v2(&beside, 0, 0) == CUDA_SUCCESS);
  cusim_break_context(sim.context, CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuMemAlloc_v2(&address, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(sim.context) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&address, 1) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuStreamSynchronize(nullptr) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CUcontext again = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&address, 1) == CUDA_SUCCESS);
}

TEST_CASE("a context costs what the setting says, and may not fit") {
  const Simulated sim{{"MEMORY", "1GiB"}, {"CONTEXT_BYTES", "600MiB"}};
  CHECK(cusim_used_bytes(0) == 600 * kMiB);
  CUcontext second = nullptr;
  CHECK(cuCtxCreate_v2(&second, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("peer access is per pair, once") {
  const Simulated sim{{"DEVICES", "2"}};
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  CHECK(cuCtxDisablePeerAccess(other) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  CHECK(cuCtxEnablePeerAccess(other, 0) == CUDA_SUCCESS);
  CHECK(cuCtxEnablePeerAccess(other, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CHECK(cuCtxEnablePeerAccess(sim.context, 0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxDisablePeerAccess(other) == CUDA_SUCCESS);
}

TEST_CASE("faults hit the calls they name, and have no effect besides") {
  const Simulated sim;
  cusim_fail("cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY, 2);
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc_v2(&address, 2 * kMiB) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&address, 2 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemAlloc_v2(&address, 2 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_used_bytes(0) == 2 * kMiB);
  CHECK(cuMemAlloc_v2(&address, 2 * kMiB) == CUDA_SUCCESS);
  CHECK(cusim_calls("cuMemAlloc_v2") == 4);
  CHECK(cusim_calls("cuNoSuchCall") == 0);
}

TEST_CASE("faults can come from the environment") {
  const Simulated sim{{"FAIL", "cuMemGetInfo_v2:1:999,cuCtxSynchronize:1:700:3"}};
  std::size_t bytes = 0;
  CHECK(cuMemGetInfo_v2(&bytes, &bytes) == CUDA_ERROR_UNKNOWN);
  CHECK(cuMemGetInfo_v2(&bytes, &bytes) == CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a sticky fault breaks the context that is current") {
  const Simulated sim{{"FAIL", "cuMemGetInfo_v2:2:700:sticky"}};
  std::size_t bytes = 0;
  CHECK(cuMemGetInfo_v2(&bytes, &bytes) == CUDA_SUCCESS);
  CHECK(cuMemGetInfo_v2(&bytes, &bytes) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuMemGetInfo_v2(&bytes, &bytes) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
}
