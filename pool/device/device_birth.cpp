// See device_birth.hpp.
#include "pool/device/device_birth.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace cupool::device {

namespace {
template <std::size_t N> void copy_text(char (&to)[N], const char* from) {
  const std::size_t length = ::strnlen(from, N - 1);
  std::memcpy(to, from, length);
  std::memset(to + length, 0, N - length);
}

/// Is the device a MIG instance? It has a UUID of its own, which the second form of the call returns, while the first form returns that of the GPU
/// that it is a part of (cuda.h 13.0). Where a driver has only one of the forms, the device's name shows it ("NVIDIA A100-SXM4-40GB MIG 1g.5gb"). [?]
/// that both hold on every driver.
bool is_mig_instance(const Driver& driver, CUdevice device, const CUuuid& uuid, const char* name) {
  CUuuid of_gpu{};
  const bool has_both = driver.has_cuDeviceGetUuid() && driver.has_cuDeviceGetUuid_v2() && driver.cuDeviceGetUuid(&of_gpu, device) == CUDA_SUCCESS;
  return (has_both && std::memcmp(&of_gpu, &uuid, sizeof uuid) != 0) || std::strstr(name, " MIG ") != nullptr;
}

/// Writes the UUID as nvidia-smi -L and CUDA_VISIBLE_DEVICES spell it.
void describe_uuid(const Driver& driver, CUdevice device, int ordinal, const char* name, observe::LiveDevice& live) {
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
  std::snprintf(text, sizeof text, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                is_mig_instance(driver, device, uuid, name) ? "MIG" : "GPU", byte(0), byte(1), byte(2), byte(3), byte(4), byte(5), byte(6), byte(7),
                byte(8), byte(9), byte(10), byte(11), byte(12), byte(13), byte(14), byte(15));
  std::memcpy(live.uuid, text, sizeof live.uuid);  // 40 characters: the field is full
}

bool has_memory_pools(const Driver& driver, CUdevice device) {
  int supported = 1;
  if (driver.has_cuDeviceGetAttribute() &&
      driver.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device) != CUDA_SUCCESS)
    return false;
  return supported != 0 && driver.has_cuMemAllocAsync() && driver.has_cuMemFreeAsync() && driver.has_cuStreamCreate() && driver.has_cuStreamQuery() &&
         driver.has_cuStreamDestroy_v2();
}
}  // namespace

void set_backing(observe::LiveDevice& live, const char* backing) { copy_text(live.backing, backing); }

config::Policy policy_in_force(const Driver& driver, int ordinal, const config::Options& options) {
  if (options.policy == config::Policy::platform || options.ipc == config::IpcMode::native) return config::Policy::platform;
  if (options.policy != config::Policy::async)
    return options.policy == config::Policy::preallocate ? config::Policy::preallocate : config::Policy::grow;
  CUdevice device = ordinal;
  if (driver.has_cuDeviceGet() && driver.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS) return config::Policy::grow;
  return has_memory_pools(driver, device) ? config::Policy::async : config::Policy::grow;
}

CUresult describe_device(const Driver& driver, int ordinal, const config::Options& options, observe::LiveDevice& live) {
  CUdevice device = ordinal;
  if (driver.has_cuDeviceGet())
    if (const CUresult code = driver.cuDeviceGet(&device, ordinal); code != CUDA_SUCCESS) return code;
  std::size_t total_bytes = 0;
  if (const CUresult code = driver.cuDeviceTotalMem_v2(&total_bytes, device); code != CUDA_SUCCESS) return code;
  char name[128] = "GPU";
  if (driver.has_cuDeviceGetName()) driver.cuDeviceGetName(name, static_cast<int>(sizeof name - 1), device);
  describe_uuid(driver, device, ordinal, name, live);
  copy_text(live.name, name);
  const config::Policy policy = policy_in_force(driver, ordinal, options);
  copy_text(live.policy, std::string(config::name_of(policy)).c_str());
  copy_text(live.backing, policy == config::Policy::platform ? "native" : policy == config::Policy::async ? "driver_pool" : "segments");
  live.total_bytes = total_bytes;
  const config::Amount* limit = options.limit.for_device(ordinal);
  live.limit_bytes = limit != nullptr ? std::max<std::uint64_t>(limit->resolve(total_bytes), 1) : 0;  // 0 is none
  live.ordinal = ordinal;
  live.in_use.store(1, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace cupool::device
