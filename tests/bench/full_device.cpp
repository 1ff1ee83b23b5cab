// Random blocks that keep a device full: how many are refused, although by their bytes, in whole pages, they would fit. An ordinary CUDA program.
// full_device --help says how it is called and what it prints.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "cuda_streams.hpp"
#include "device_work.hpp"

namespace {
constexpr std::size_t kPage_bytes = std::size_t{2} << 20;
constexpr std::size_t kLeast_bytes = std::size_t{4} << 10;
constexpr std::size_t kLargestShare = 8;  ///< of the device
constexpr std::size_t kSteps = 3000;
constexpr std::size_t kWholePageSteps = 20'000;

constexpr const char* kUsage =
    "Usage: full_device [SEED [PERCENT [BEHIND [STREAMS [MOST_MIB]]]]]\n"
    "3,000 allocations of random blocks, from 4 KiB to an eighth of what is free at the start, as many of each octave. Before each, random blocks "
    "are freed until\n"
    "everything, in pages of 2 MiB, would fit into PERCENT (98) of that.\n"
    "BEHIND (0): kernels look at each block before its free, and so many of them are still to run (on the simulated driver only). 0: none.\n"
    "STREAMS (0): cudaMallocAsync and cudaFreeAsync, on one of so many streams, by chance; 0: cudaMalloc and cudaFree.\n"
    "MOST_MIB (0): instead 20,000 blocks of whole pages, up to so many MiB, as pools above the driver take them. 0: as above.\n"
    "One line of JSON: allocations; refused; peak_of_free, the most that lived at once.\n"
    "Runs on the driver that it is started with, alone or under the pool:\n"
    "  CUSIM_MEMORY=80GiB LD_LIBRARY_PATH=build/sim LD_PRELOAD=build/libcupool.so build/bench/full_device 1\n";

struct Block {
  void* address;
  std::size_t bytes;
  std::uint32_t stream;
  std::uint32_t value;
};

struct Setting {
  unsigned long seed = 1;
  unsigned long percent = 98;
  unsigned long behind = 0;
  unsigned long streams = 0;
  unsigned long most_mib = 0;
};

std::size_t in_pages(std::size_t bytes) { return bytes < kPage_bytes / 2 ? bytes : (bytes + kPage_bytes - 1) / kPage_bytes * kPage_bytes; }

/// false: it is no number up to `most`.
bool read(const char* text, unsigned long most, unsigned long* value) {
  char* end = nullptr;
  *value = std::strtoul(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == '\0' && *value <= most;
}

class Walk {
 public:
  explicit Walk(const Setting& setting) : setting_(setting), random_(setting.seed) {
    std::size_t total_bytes = 0;
    bench::check("cudaMemGetInfo", cudaMemGetInfo(&free_bytes_, &total_bytes));
    if (setting.behind != 0) work_ = std::make_unique<bench::DeviceWork>(setting.behind);
  }

  /// Throws bench::AllocatorFailure where anything but an allocation fails.
  void run() {
    const std::size_t most_bytes = free_bytes_ / 100 * setting_.percent;
    const std::size_t least_bytes = setting_.most_mib == 0 ? kLeast_bytes : kPage_bytes;
    const std::size_t largest_bytes = setting_.most_mib == 0 ? free_bytes_ / kLargestShare : setting_.most_mib << 20;
    const double octaves = std::log2(static_cast<double>(largest_bytes) / static_cast<double>(least_bytes));
    std::uniform_real_distribution<double> octave(0, octaves);
    for (std::size_t step = 0; step < steps(); ++step) {
      auto bytes = static_cast<std::size_t>(static_cast<double>(least_bytes) * std::exp2(octave(random_)));
      if (setting_.most_mib != 0) bytes -= bytes % kPage_bytes;
      while (!live_.empty() && live_bytes_ + in_pages(bytes) > most_bytes) free_any();
      allocate(bytes, static_cast<std::uint32_t>(step));
    }
    if (work_ != nullptr && work_->finish() != 0) throw bench::AllocatorFailure("memory was given out again while a kernel still needed it");
  }

  void print() const {
    std::printf("{\"allocations\": %zu, \"refused\": %zu, \"peak_of_free\": %.4f}\n", steps(), refused_,
                static_cast<double>(peak_bytes_) / static_cast<double>(free_bytes_));
  }

 private:
  std::size_t steps() const { return setting_.most_mib == 0 ? kSteps : kWholePageSteps; }
  cudaStream_t handle_of(std::uint32_t stream) { return setting_.streams == 0 ? nullptr : streams_[stream]; }

  void allocate(std::size_t bytes, std::uint32_t value) {
    Block block{nullptr, bytes, setting_.streams == 0 ? 0 : static_cast<std::uint32_t>(random_() % setting_.streams), value};
    const cudaError_t code =
        setting_.streams == 0 ? cudaMalloc(&block.address, bytes) : cudaMallocAsync(&block.address, bytes, handle_of(block.stream));
    if (code == cudaErrorMemoryAllocation) {
      ++refused_;
      return;
    }
    bench::check("an allocation", code);
    if (work_ != nullptr) work_->write(handle_of(block.stream), block.address, value);
    live_.push_back(block);
    live_bytes_ += in_pages(bytes);
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  }

  void free_any() {
    std::swap(live_[random_() % live_.size()], live_.back());
    const Block block = live_.back();
    live_.pop_back();
    live_bytes_ -= in_pages(block.bytes);
    if (work_ != nullptr) work_->read(handle_of(block.stream), block.address, block.value);
    bench::check("a free", setting_.streams == 0 ? cudaFree(block.address) : cudaFreeAsync(block.address, handle_of(block.stream)));
  }

  Setting setting_;
  std::mt19937_64 random_;
  bench::CudaStreams streams_;
  std::unique_ptr<bench::DeviceWork> work_;
  std::size_t free_bytes_ = 0;
  std::vector<Block> live_;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
  std::size_t refused_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && (std::strcmp(arguments[1], "--help") == 0 || std::strcmp(arguments[1], "-h") == 0)) return std::fputs(kUsage, stdout) < 0 ? 1 : 0;
  Setting setting;
  const struct {
    unsigned long* value;
    unsigned long most;
  } places[] = {{&setting.seed, 4'000'000'000},
                {&setting.percent, 100},
                {&setting.behind, 1'000'000},
                {&setting.streams, 1'000},
                {&setting.most_mib, 1'000'000}};
  bool is_understood = count <= 6;
  for (int i = 1; is_understood && i < count; ++i) is_understood = read(arguments[i], places[i - 1].most, places[i - 1].value);
  is_understood = is_understood && setting.most_mib != 1;
  if (!is_understood)
    return std::fprintf(stderr, "full_device: wanted SEED, PERCENT up to 100, BEHIND, STREAMS up to 1,000, and MOST_MIB, 2 or more: see --help\n"), 2;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::fprintf(stderr, "full_device: no GPU\n"), 5;
  try {
    Walk walk(setting);
    walk.run();
    walk.print();
    return 0;
  } catch (const bench::AllocatorFailure& failure) {
    std::fprintf(stderr, "full_device: %s%s%s\n", failure.what(), failure.reason.empty() ? "" : ": ", failure.reason.c_str());
    return 1;
  }
}
