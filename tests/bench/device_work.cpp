#include "device_work.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "allocator.hpp"

namespace bench {
namespace {

constexpr std::uint64_t kTouch_ns = 1'000;
/// The first byte: pools give memory out again from its start on.
constexpr std::size_t kTouchedBytes = 1;
/// How often to look whether the host waits inside a call, and by how much the device goes on then.
constexpr auto kLook = std::chrono::microseconds(200);
/// In so many looks in a row at one call it must have asked the device again. A host that only has no processor, or computes, does not wait; and
/// waits inside the driver move the clock themselves.
constexpr int kLooksOfAWait = 2;

std::uint8_t value_of(std::uint32_t slot) { return static_cast<std::uint8_t>(1 + slot % 251); }

}  // namespace

/// As tests/sim/cusim.h declares them; looked up, so that the benches link no simulator.
struct DeviceWork::Controls {
  std::uint64_t (*now_ns)();
  void (*advance_ns)(std::uint64_t duration_ns);
  CUresult (*launch_fill)(CUstream stream, CUdeviceptr address, std::size_t bytes, std::uint8_t value, std::uint64_t duration_ns);
  CUresult (*launch_check)(CUstream stream, CUdeviceptr address, std::size_t bytes, std::uint8_t expected, std::uint64_t duration_ns);
  std::uint64_t (*mismatched_bytes)();
  std::uint64_t (*calls)(const char* exported_symbol);

  std::uint64_t questions() const { return calls("cuEventQuery") + calls("cuStreamQuery") + calls("cuStreamQuery_ptsz"); }

  static const Controls& instance() {
    static const Controls found;
    return found;
  }

 private:
  Controls() {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr) throw AllocatorFailure(std::string("pending work: ") + dlerror());
    find(driver, "cusim_now_ns", &now_ns);
    find(driver, "cusim_advance_ns", &advance_ns);
    find(driver, "cusim_launch_fill", &launch_fill);
    find(driver, "cusim_launch_check", &launch_check);
    find(driver, "cusim_mismatched_bytes", &mismatched_bytes);
    find(driver, "cusim_calls", &calls);
  }
  template <class Function> static void find(void* driver, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(driver, name));
    if (*function == nullptr) throw AllocatorFailure("pending work needs the simulated driver: libcuda.so.1 has no " + std::string(name));
  }
};

DeviceWork::DeviceWork(std::uint64_t frees_behind)
    : controls_(Controls::instance()), frees_behind_(frees_behind), device_([this] { work_while_host_waits(); }) {}

DeviceWork::~DeviceWork() {
  over_ = true;
  device_.join();
}

void DeviceWork::write(void* stream, void* address, std::uint32_t slot) {
  const auto to = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
  const CUresult code = controls_.launch_fill(static_cast<CUstream>(stream), to, kTouchedBytes, value_of(slot), 0);
  if (code != CUDA_SUCCESS) throw AllocatorFailure("a kernel that writes a block failed with " + std::to_string(code));
  steps_.fetch_add(1, std::memory_order_relaxed);
}

void DeviceWork::read(void* stream, void* address, std::uint32_t slot) {
  const auto from = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
  const CUresult code = controls_.launch_check(static_cast<CUstream>(stream), from, kTouchedBytes, value_of(slot), kTouch_ns);
  if (code != CUDA_SUCCESS) throw AllocatorFailure("a kernel that reads a block failed with " + std::to_string(code));
  const std::uint64_t now_ns = controls_.now_ns();
  std::uint64_t& end_ns = stream_end_ns_[stream];
  end_ns = std::max(end_ns, now_ns) + kTouch_ns;
  pending_ends_ns_.push(end_ns);
  while (!pending_ends_ns_.empty() && (pending_ends_ns_.size() > frees_behind_ || pending_ends_ns_.top() <= now_ns)) {
    const std::uint64_t until_ns = pending_ends_ns_.top();
    pending_ends_ns_.pop();
    if (until_ns > now_ns) controls_.advance_ns(until_ns - std::min(until_ns, controls_.now_ns()));
  }
  steps_.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t DeviceWork::finish() {
  std::uint64_t end_ns = controls_.now_ns();
  for (const auto& [stream, stream_end_ns] : stream_end_ns_) end_ns = std::max(end_ns, stream_end_ns);
  controls_.advance_ns(end_ns + kTouch_ns - controls_.now_ns());
  return controls_.mismatched_bytes();
}

void DeviceWork::work_while_host_waits() {
  std::uint64_t steps_seen = 0;
  std::uint64_t questions_seen = 0;
  int looks_of_a_wait = 0;
  while (!over_) {
    std::this_thread::sleep_for(kLook);
    const std::uint64_t steps = steps_.load(std::memory_order_relaxed);
    const std::uint64_t questions = controls_.questions();
    looks_of_a_wait = steps == steps_seen && questions != questions_seen ? looks_of_a_wait + 1 : 0;
    if (looks_of_a_wait >= kLooksOfAWait) controls_.advance_ns(std::chrono::nanoseconds(kLook).count());
    steps_seen = steps;
    questions_seen = questions;
  }
}

}  // namespace bench
