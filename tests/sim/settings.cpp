// Parsing of the simulated driver's environment.
#include "tests/sim/settings.hpp"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

namespace cusim {
namespace {

std::map<std::string, std::string>& overrides() {
  static auto* const map = new std::map<std::string, std::string>;
  return *map;
}

std::optional<std::string> setting(const std::string& name) {
  if (const auto found = overrides().find(name); found != overrides().end()) return found->second;
  const char* value = std::getenv(name == "CUDA_VISIBLE_DEVICES" ? name.c_str() : ("CUSIM_" + name).c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

[[noreturn]] void refuse(const std::string& name, const std::string& value) {
  std::fprintf(stderr, "cusim: bad value for CUSIM_%s: '%s'\n", name.c_str(), value.c_str());
  std::abort();
}

constexpr int kMigGpu = 100;  ///< the index whose UUID is the GPU's that is divided into instances

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::uint64_t number(const std::string& name, const std::string& value) {
  char* end = nullptr;
  const unsigned long long parsed = std::strtoull(value.c_str(), &end, 0);
  if (value.empty() || *end != '\0') refuse(name, value);
  return parsed;
}

std::uint64_t bytes(const std::string& name, const std::string& value) {
  char* end = nullptr;
  const double amount = std::strtod(value.c_str(), &end);
  if (end == value.c_str() || amount < 0) refuse(name, value);
  const std::string unit = end;
  static const std::map<std::string, std::uint64_t> kUnits = {{"", 1},           {"B", 1},
                                                              {"K", 1ULL << 10}, {"KiB", 1ULL << 10},
                                                              {"M", 1ULL << 20}, {"MiB", 1ULL << 20},
                                                              {"G", 1ULL << 30}, {"GiB", 1ULL << 30},
                                                              {"T", 1ULL << 40}, {"TiB", 1ULL << 40}};
  const auto scale = kUnits.find(unit);
  if (scale == kUnits.end()) refuse(name, value);
  return static_cast<std::uint64_t>(amount * static_cast<double>(scale->second));
}

/// CUDA_VISIBLE_DEVICES: ordinals and "GPU-<uuid>" ("MIG-<uuid>" of an instance), or a unique beginning of it; the list ends at the first entry that
/// names nothing. Of several instances only the first is used (MIG User Guide, "CUDA Device Enumeration").
std::vector<int> visible_devices(int count, bool is_mig) {
  const std::string prefix = is_mig ? "MIG-" : "GPU-";
  std::vector<int> all;
  for (int i = 0; i < count; ++i) all.push_back(i);
  const std::optional<std::string> list = setting("CUDA_VISIBLE_DEVICES");
  if (!list) return all;
  std::vector<int> chosen;
  for (const std::string& entry : split(*list, ',')) {
    int match = -1;
    if (entry.rfind(prefix, 0) == 0) {
      for (const int i : all) {
        if (uuid_text(device_uuid(i), prefix.c_str()).rfind(entry, 0) != 0) continue;
        if (match >= 0) return chosen;  // it begins more than one name
        match = i;
      }
    } else if (!entry.empty() && std::isdigit(static_cast<unsigned char>(entry[0])) != 0) {
      match = std::atoi(entry.c_str());
    }
    if (match < 0 || match >= count) break;
    for (const int other : chosen) {
      if (other == match) return {};  // a device named twice: none is visible
    }
    chosen.push_back(match);
  }
  return chosen;
}

/// One size, or "minimum,recommended". Handles lie in a file in steps of 2 MiB, so that no granularity can be finer.
void read_granularity(const std::string& text, Settings* read) {
  const std::vector<std::string> parts = split(text, ',');
  if (parts.empty() || parts.size() > 2) refuse("GRANULARITY", text);
  read->vmm_minimum_bytes = bytes("GRANULARITY", parts.front());
  read->vmm_recommended_bytes = bytes("GRANULARITY", parts.back());
  const std::uint64_t minimum = read->vmm_minimum_bytes;
  const bool is_power = minimum != 0 && (minimum & (minimum - 1)) == 0;
  if (!is_power || minimum % (2ULL << 20) != 0 || read->vmm_recommended_bytes % minimum != 0) refuse("GRANULARITY", text);
}

Offer offer(const std::string& name, const std::string& value) {
  if (value == "1") return Offer::given;
  if (value == "0") return Offer::absent;
  if (value == "unopened" && name == "VMM_RDMA") return Offer::unopened;
  if (value != "refused") refuse(name, value);
  return Offer::refused;
}

FaultSetting fault(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() < 3 || parts.size() > 4) refuse("FAIL", text);
  FaultSetting parsed;
  parsed.symbol = parts[0];
  parsed.nth = number("FAIL", parts[1]);
  parsed.code = static_cast<CUresult>(number("FAIL", parts[2]));
  parsed.is_sticky = parts.size() == 4 && parts[3] == "sticky";
  if (parts.size() == 4 && !parsed.is_sticky) parsed.times = number("FAIL", parts[3]);
  return parsed;
}

}  // namespace

CUuuid device_uuid(int index) {
  CUuuid uuid{};
  const unsigned char seed[16] = {0xc0, 0x51, 0x3a, 0x9d, 0x11, 0x22, 0x43, 0x44, 0x85, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0};
  std::memcpy(uuid.bytes, seed, sizeof seed);
  uuid.bytes[15] = static_cast<char>(index);
  uuid.bytes[4] = static_cast<char>(index * 37 + 5);
  return uuid;
}

std::string uuid_text(const CUuuid& uuid, const char* prefix) {
  std::string text = prefix;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    text += digits;
  }
  return text;
}

void override_setting(const std::string& name, std::optional<std::string> value) {
  if (value) {
    overrides()[name] = *value;
  } else {
    overrides().erase(name);
  }
}

Settings read_settings() {
  Settings read;
  const std::uint64_t count = number("DEVICES", setting("DEVICES").value_or("1"));
  if (count < 1 || count > 64) refuse("DEVICES", std::to_string(count));
  const bool is_mig = number("MIG", setting("MIG").value_or("0")) != 0;
  const std::vector<std::string> sizes = split(setting("MEMORY").value_or("80GiB"), ',');
  for (const int index : visible_devices(static_cast<int>(count), is_mig)) {
    DeviceSetting device;
    device.physical_index = index;
    if (is_mig && !read.devices.empty()) break;
    device.uuid = device_uuid(index);
    device.is_mig = is_mig;
    device.gpu_uuid = is_mig ? device_uuid(kMigGpu) : device.uuid;
    // A list shorter than the devices: its last size holds for the rest.
    const std::size_t at = static_cast<std::size_t>(index);
    device.memory_bytes = bytes("MEMORY", at < sizes.size() ? sizes[at] : sizes.back());
    read.devices.push_back(device);
  }
  const auto flag = [](const char* name, const char* fallback) { return number(name, setting(name).value_or(fallback)) != 0; };
  read.reuses_handles = flag("REUSE_HANDLES", "0");
  read.reset_leaves_pools = flag("RESET_LEAVES_POOLS", "0");
  read.end_errors = flag("END_ERRORS", "0");
  const std::string thread_streams = setting("THREAD_STREAMS").value_or("stay");
  if (thread_streams != "stay" && thread_streams != "end") refuse("THREAD_STREAMS", thread_streams);
  read.thread_streams_stay = thread_streams == "stay";
  read.driver_version = static_cast<int>(number("DRIVER_VERSION", setting("DRIVER_VERSION").value_or("13000")));
  read.missing = setting("MISSING").value_or("");
  read.supports_vmm = flag("VMM", "1");
  read_granularity(setting("GRANULARITY").value_or("2MiB"), &read);
  read.vmm_waits = flag("NOTE_SYNC", "0");
  read.vmm_descriptors = offer("VMM_FD", setting("VMM_FD").value_or("1"));
  read.vmm_rdma = offer("VMM_RDMA", setting("VMM_RDMA").value_or("1"));
  read.decompression = offer("DECOMPRESSION", setting("DECOMPRESSION").value_or("0"));
  read.vmm_has_ranges = flag("VMM_RANGE", "1");
  read.links_devices = flag("PEERS", "1");
  read.has_no_device = flag("NO_DEVICE", "0");
  read.variable_bytes = bytes("VARIABLE_BYTES", setting("VARIABLE_BYTES").value_or("0"));
  read.context_bytes = bytes("CONTEXT_BYTES", setting("CONTEXT_BYTES").value_or("0"));
  read.pool_step_bytes = bytes("POOL_STEP", setting("POOL_STEP").value_or("0"));
  if (read.pool_step_bytes % (2ULL << 20) != 0) refuse("POOL_STEP", setting("POOL_STEP").value_or("0"));
  read.address_bytes = bytes("ADDRESSES", setting("ADDRESSES").value_or("0"));
  read.copy_ns = number("COPY_NS", setting("COPY_NS").value_or("1000"));
  const std::string clock = setting("CLOCK").value_or("virtual");
  if (clock != "virtual" && clock != "real") refuse("CLOCK", clock);
  read.real_clock = clock == "real";
  for (const std::string& text : split(setting("FAIL").value_or(""), ',')) read.faults.push_back(fault(text));
  read.log_path = setting("LOG").value_or("");
  return read;
}

}  // namespace cusim
