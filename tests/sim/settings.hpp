// The environment of the simulated driver (CUSIM_*, CUDA_VISIBLE_DEVICES), read at load and at cusim_reset().
// A malformed value aborts with one line: a test that asked for something must not run without it.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cusim {

struct FaultSetting {
  std::string symbol;
  std::uint64_t nth = 1;
  CUresult code = CUDA_SUCCESS;
  std::uint64_t times = 1;
  bool is_sticky = false;  ///< the context that is current breaks with the code, as by an illegal access of earlier work
};

/// Whether a device has a feature: `given`: it has it; `absent`: its attribute says that it has not; `refused`: the attribute says that it has, and
/// handles that ask for it are refused; `unopened`: such handles are created and mapped, but cuMemSetAccess fails on them.
enum class Offer { given, absent, refused, unopened };

struct DeviceSetting {
  std::uint64_t memory_bytes = 0;
  int physical_index = 0;  ///< before CUDA_VISIBLE_DEVICES
  CUuuid uuid{};           ///< of a MIG instance: its own; `gpu_uuid` is the whole GPU's
  CUuuid gpu_uuid{};
  bool is_mig = false;
};

struct Settings {
  std::vector<DeviceSetting> devices;  ///< the visible ones, in their order
  int driver_version = CUDA_VERSION;
  std::string missing;  ///< base names of functions that this driver lacks, whatever its version
  bool supports_vmm = true;
  std::uint64_t vmm_minimum_bytes = 0;  ///< granularity of handles and mappings
  std::uint64_t vmm_recommended_bytes = 0;
  bool vmm_waits = false;                ///< cuMemUnmap and cuMemSetAccess wait for the work of every context
  Offer vmm_descriptors = Offer::given;  ///< handles that can be exported as file descriptors
  Offer vmm_rdma = Offer::given;         ///< handles for GPUDirect RDMA
  Offer decompression = Offer::absent;   ///< by hardware, and handles for it
  bool vmm_has_ranges = true;            ///< cuMemGetAddressRange answers a mapping; else NOT_FOUND, as drivers were seen to (nccl #2332)
  bool links_devices = true;             ///< devices can reach each other's memory
  bool has_no_device = false;
  bool real_clock = false;
  bool reuses_handles = false;
  bool reset_leaves_pools = false;  ///< memory of pools stays when a primary context ends, as on an H100 (driver 580)
  bool end_errors = false;          ///< ending a broken context tells of its error
  bool thread_streams_stay = true;  ///< a thread's own streams, and their captures, outlive it
  std::uint64_t context_bytes = 0;
  std::uint64_t address_bytes = 0;    ///< of all reservations; 0: no bound
  std::uint64_t pool_step_bytes = 0;  ///< by which pools grow, of which every block is a part; 0: a piece for each block, small ones share 2 MiB
  std::uint64_t variable_bytes = 0;   ///< of the one variable of each module and library; 0: they have none
  std::uint64_t copy_ns = 1000;
  std::vector<FaultSetting> faults;
  std::string log_path;
};

/// The UUID of physical device `index`; the same in every process.
CUuuid device_uuid(int index);
std::string uuid_text(const CUuuid& uuid, const char* prefix = "GPU-");

/// `name` without the prefix; nullopt removes the override, and the environment counts again.
void override_setting(const std::string& name, std::optional<std::string> value);
Settings read_settings();

}  // namespace cusim
