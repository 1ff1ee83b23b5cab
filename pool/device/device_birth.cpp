// See device_birth.hpp.
#include "pool/device/device_birth.hpp"

#include <cstdio>
#include <cstring>

namespace cupool::device {

namespace {
template <std::size_t N> void copy_text(char (&to)[N], const char* from) {
  const std::size_t length = ::strnlen(from, N - 1);
  std::memcpy(to, from, length);
  std::memset(to + length, 0, N - length);
}

void describe_uuid(const Driver& driver, CUdevice device, int ordinal, observe::LiveDevice& live) {
  CUuuid uuid{};
  CUresult code = CUDA_ERROR_NOT_SUPPORTED;
  if (driver.has_cuDeviceGetUuid_v2()) code = driver.cuDeviceGetUuid_v2(&uuid, device);
  if (code != CUDA_SUCCESS && driver.has_cuDeviceGetUuid()) code = driver.cuDeviceGetUuid(&uuid, device);
  if (code != CUDA_SUCCESS) {
    std::snprintf(live.uuid, sizeof live.uuid, "GPU-ordinal-%d", ordinal);
    return;
  }
  char text[64];
  const auto byte = [&](int i) { return static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])); };
  std::snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", byte(0), byte(1), byte(2),
                byte(3), byte(4), byte(5), byte(6), byte(7), byte(8), byte(9), byte(10), byte(11), byte(12), byte(13), byte(14), byte(15));
  std::memcpy(live.uuid, text, sizeof live.uuid);  // 40 characters: the field is full
}

/// The policy that really serves, which the report must name: `async` is served by `grow` until stream-ordered allocation is here.
const char* policy_in_force(const config::Options& options) {
  if (options.policy == config::Policy::platform || options.ipc == config::IpcMode::native) return "platform";
  return options.policy == config::Policy::preallocate ? "preallocate" : "grow";
}
}  // namespace

CUresult describe_device(const Driver& driver, int ordinal, const config::Options& options, observe::LiveDevice& live) {
  CUdevice device = ordinal;
  if (driver.has_cuDeviceGet())
    if (const CUresult code = driver.cuDeviceGet(&device, ordinal); code != CUDA_SUCCESS) return code;
  std::size_t total_bytes = 0;
  if (const CUresult code = driver.cuDeviceTotalMem_v2(&total_bytes, device); code != CUDA_SUCCESS) return code;
  describe_uuid(driver, device, ordinal, live);
  char name[128] = "GPU";
  if (driver.has_cuDeviceGetName()) driver.cuDeviceGetName(name, static_cast<int>(sizeof name - 1), device);
  copy_text(live.name, name);
  copy_text(live.policy, policy_in_force(options));
  copy_text(live.backing, std::strcmp(live.policy, "platform") == 0 ? "native" : "segments");
  live.total_bytes = total_bytes;
  const config::Amount* limit = options.limit.for_device(ordinal);
  live.limit_bytes = limit != nullptr ? limit->resolve(total_bytes) : 0;
  live.ordinal = ordinal;
  live.in_use.store(1, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace cupool::device
