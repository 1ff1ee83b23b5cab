// identical_steps: random jobs that repeat one step for ever, in the library itself, on the simulated driver in-process. How many of them call the
// driver for memory, or wait in it, once they are known? A step is the same blocks in the same order; where an epoch of deferred frees ends in it is
// not, so what the step needs differs.
//
// There is a kernel for each allocation and each free. Time is the simulator's (kernel_ns=0 with behind=0: none passes). --help has the settings.
#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "config/options.hpp"
#include "config/units.hpp"
#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/device/pool_set.hpp"
#include "tests/conformance/random_step.hpp"
#include "tests/sim/cusim.h"
#include "tests/sim/sim_driver_api.hpp"

namespace {

using namespace cupool;
using test::Operation;

constexpr std::size_t kKnown = 2;  ///< steps after which a job is known

class SimClock final : public Clock {
 public:
  std::uint64_t now_ns() const override { return cusim_now_ns(); }
  void pause(std::uint64_t duration_ns) override { cusim_advance_ns(duration_ns); }
};

using Step = std::vector<Operation>;

void must(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) throw std::runtime_error(std::string(what) + ": " + std::to_string(static_cast<int>(code)));
}

/// Layers forwards and backwards: activations that live until their layer comes again, temporaries, gradients to the end of the step.
Step layers(std::mt19937_64& random) {
  const auto up_to = [&random](std::size_t most) { return static_cast<std::size_t>(random() % most); };
  const std::size_t depth = 4 + up_to(60);
  const std::size_t width_kib = 64 + up_to(16'000);
  std::vector<std::size_t> kinds;  // sizes of a layer's activations
  for (std::size_t i = 0; i < 2 + up_to(6); ++i) kinds.push_back((1 + up_to(4)) * width_kib * kKiB / (1 + up_to(3)));
  Step step;
  std::size_t next = 0;
  std::vector<std::size_t> gradients;
  std::vector<std::vector<std::size_t>> activations(depth);
  const auto begin = [&](std::size_t bytes) {
    step.push_back({std::max<std::size_t>(bytes, 512), next});
    return next++;
  };
  const auto temporary = [&] {
    const std::size_t block = begin(kinds[up_to(kinds.size())] / (1 + up_to(2)));
    step.push_back({0, block});
  };
  std::vector<std::size_t> temporaries;
  const std::size_t temporaries_of_layer = 1 + up_to(3);
  for (std::size_t layer = 0; layer < depth; ++layer) {
    for (const std::size_t bytes : kinds) activations[layer].push_back(begin(bytes));
    for (std::size_t i = 0; i < temporaries_of_layer; ++i) temporary();
  }
  for (std::size_t layer = depth; layer-- > 0;) {
    for (std::size_t i = 0; i < temporaries_of_layer; ++i) temporary();
    gradients.push_back(begin(kinds.front()));
    for (const std::size_t block : activations[layer]) step.push_back({0, block});
  }
  for (const std::size_t block : gradients) step.push_back({0, block});
  return step;
}

std::uint64_t need_bytes(const Step& step) {
  std::map<std::size_t, std::uint64_t> live;
  std::uint64_t bytes = 0;
  std::uint64_t most_bytes = 0;
  for (const Operation& operation : step) {
    if (operation.bytes != 0) {
      live[operation.index] = operation.bytes;
      bytes += operation.bytes;
    } else {
      bytes -= live[operation.index];
    }
    most_bytes = std::max(most_bytes, bytes);
  }
  return most_bytes;
}

std::uint64_t memory_calls() {
  std::uint64_t calls = 0;
  for (const char* name : {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemFreeAsync", "cuMemAllocAsync", "cuMemCreate", "cuMemRelease", "cuMemMap",
                           "cuMemUnmap", "cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree"})
    calls += cusim_calls(name);
  return calls;
}

std::uint64_t waits() { return cusim_calls("cuEventSynchronize") + cusim_calls("cuStreamSynchronize") + cusim_calls("cuCtxSynchronize"); }

struct Setting {
  std::uint64_t jobs = 120;
  std::uint64_t first = 0;
  std::size_t steps = 40;
  std::uint64_t behind = 0;
  std::uint64_t kernel_ns = 20'000;
  std::string memory = "80GiB";
  double times = 0;
  bool is_layers = false;
  bool is_paged = true;
  std::string wait = "never";
};

struct Outcome {
  std::uint64_t last_call = 0;   ///< the last step with a call for memory, from 1 on
  std::uint64_t late_calls = 0;  ///< for memory, once the job is known
  std::uint64_t late_steps = 0;  ///< with such a call
  std::uint64_t late_waits = 0;
  std::uint64_t last_wait = 0;
  double pool_of_need = 0;
};

class Job {
 public:
  Job(const Setting& setting, std::uint64_t seed) : setting_(setting), random_(seed) {
    fixed_bytes_ = (512 + random_() % 9728) * kMiB;
    step_ = setting.is_layers ? layers(random_) : test::make_step(random_);
    need_bytes_ = fixed_bytes_ + need_bytes(step_);
    const std::string memory = setting.times != 0
                                   ? std::to_string(static_cast<std::uint64_t>(setting.times * static_cast<double>(need_bytes_)) / kMiB) + "MiB"
                                   : setting.memory;
    cusim_configure("MEMORY", memory.c_str());
    cusim_reset();
    const DriverApi& api = cusim_driver_api();
    must(api.cuInit(0), "cuInit");
    must(api.cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    must(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    config::Options options;
    options.backing = setting.is_paged ? config::Backing::pages : config::Backing::segments;
    live_ = std::make_unique<observe::LiveDevice[]>(1);
    pools_ = std::make_unique<PoolSet>(api, options, live_.get(), 1, &clock_);
  }

  Outcome run() {
    allocate(fixed_bytes_);
    Outcome outcome;
    for (std::size_t i = 0; i < setting_.steps; ++i) {
      const std::uint64_t calls = memory_calls();
      const std::uint64_t waits_before = waits();
      play();
      const std::uint64_t calls_of_step = memory_calls() - calls;
      const std::uint64_t waits_of_step = waits() - waits_before;
      end_step();
      if (calls_of_step != 0) outcome.last_call = i + 1;
      if (waits_of_step != 0) outcome.last_wait = i + 1;
      if (i < kKnown) continue;
      outcome.late_calls += calls_of_step;
      outcome.late_steps += calls_of_step != 0 ? 1 : 0;
      outcome.late_waits += waits_of_step;
    }
    outcome.pool_of_need = static_cast<double>(live_[0].counters.reserved_bytes.peak.load()) / static_cast<double>(need_bytes_);
    return outcome;
  }

 private:
  CUdeviceptr allocate(std::uint64_t bytes) {
    const Result<CUdeviceptr> block = pools_->allocate(context_, bytes, "cuMemAlloc_v2");
    if (!block.ok()) throw std::runtime_error("out of memory");
    return block.value();
  }
  /// The clock goes on by one kernel once there are `behind` to do: also after somebody has waited.
  void launch() {
    if (setting_.kernel_ns == 0) return;
    must(cusim_launch_spin(stream_, setting_.kernel_ns), "launch");
    if (++launches_ > cusim_now_ns() / setting_.kernel_ns + setting_.behind) cusim_advance_ns(setting_.kernel_ns);
  }
  void play() {
    blocks_.clear();
    for (const Operation& operation : step_) {
      launch();
      if (operation.bytes != 0) {
        blocks_.resize(std::max(blocks_.size(), operation.index + 1));
        blocks_[operation.index] = allocate(operation.bytes);
      } else {
        pools_->free(blocks_.at(operation.index));
      }
    }
  }
  /// As the shim does after a call of the program that has waited.
  void end_step() {
    if (setting_.wait == "never") return;
    CUevent end = nullptr;
    must(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    must(cuEventRecord(end, stream_), "cuEventRecord");
    ends_.push_back(end);
    if (ends_.size() <= (setting_.wait == "late" ? 1 : 0)) return;
    must(cuEventSynchronize(ends_.front()), "cuEventSynchronize");
    must(cuEventDestroy_v2(ends_.front()), "cuEventDestroy");
    ends_.pop_front();
    if (pools_->much_waits(context_)) pools_->after_wait(context_);
  }

  const Setting& setting_;
  SimClock clock_;
  std::mt19937_64 random_;
  std::uint64_t fixed_bytes_ = 0;
  std::uint64_t need_bytes_ = 0;
  Step step_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::uint64_t launches_ = 0;
  std::deque<CUevent> ends_;
  std::vector<CUdeviceptr> blocks_;
  std::unique_ptr<observe::LiveDevice[]> live_;
  std::unique_ptr<PoolSet> pools_;
};

constexpr const char* kUsage =
    "Usage: identical_steps [SETTING=VALUE]...\n"
    "Random jobs that repeat one step for ever, on the simulated driver in-process: how many call the driver for memory, or wait in it, after their "
    "second step.\n"
    "One line of JSON. Settings, and their defaults:\n"
    "  jobs=120 first=0          how many jobs, and the first one's seed\n"
    "  steps=40                  of each job, at least 3\n"
    "  behind=0                  kernels that the GPU has still to do whenever the host goes on; there is one for each allocation and each free\n"
    "  kernel_ns=20000           what each takes\n"
    "  memory=80GiB              of the device\n"
    "  times=N                   instead: so many times what a step needs\n"
    "  shape=blocks              random blocks; layers: layers forwards and backwards\n"
    "  wait=never                whether the host waits for each step: step, for the one before it: late, or never\n"
    "  backing=pages             or segments\n";

/// Digits alone: std::stoull takes -1 for a large number, and 1x for 1.
std::uint64_t number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) throw std::invalid_argument("'" + text + "' is no number");
  return std::stoull(text);
}

double factor(const std::string& text) {
  std::size_t read = 0;
  const double value = std::stod(text, &read);
  if (read != text.size() || !(value > 0 && value <= 1e6)) throw std::invalid_argument("'" + text + "' is no number of times");
  return value;
}

std::string size(const std::string& text) {
  const auto bytes = config::parse_bytes(text);
  if (!bytes || *bytes < kGiB / 8 || *bytes > 1024 * 1024 * kGiB) throw std::invalid_argument("'" + text + "' is no size from 128MiB to 1PiB");
  return std::to_string(*bytes);  // the simulator has fewer units
}

Setting parse(int argc, char** argv) {
  Setting setting;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::size_t equals = word.find('=');
    const std::string value(equals == std::string_view::npos ? "" : word.substr(equals + 1));
    const std::string_view key = word.substr(0, equals);
    if (key == "jobs") setting.jobs = number(value);
    else if (key == "first") setting.first = number(value);
    else if (key == "steps") setting.steps = number(value);
    else if (key == "behind") setting.behind = number(value);
    else if (key == "kernel_ns") setting.kernel_ns = number(value);
    else if (key == "memory") setting.memory = size(value);
    else if (key == "times") setting.times = factor(value);
    else if (key == "shape" && (value == "blocks" || value == "layers")) setting.is_layers = value == "layers";
    else if (key == "wait" && (value == "never" || value == "step" || value == "late")) setting.wait = value;
    else if (key == "backing" && (value == "pages" || value == "segments")) setting.is_paged = value == "pages";
    else throw std::invalid_argument(std::string(word));
  }
  if (setting.jobs == 0 || setting.steps <= kKnown) throw std::invalid_argument("jobs, steps");
  return setting;
}

int measure(const Setting& setting) {
  std::uint64_t failed = 0;
  std::uint64_t calling = 0;
  std::uint64_t calling_after_20 = 0;
  std::uint64_t waiting = 0;
  std::uint64_t waiting_after_20 = 0;
  std::uint64_t late_steps = 0;
  std::uint64_t late_waits = 0;
  std::vector<double> pools;
  for (std::uint64_t job = 0; job < setting.jobs; ++job) {
    try {
      const Outcome outcome = Job(setting, setting.first + job).run();
      calling += outcome.late_calls != 0 ? 1 : 0;
      calling_after_20 += outcome.last_call > 20 ? 1 : 0;
      waiting += outcome.late_waits != 0 ? 1 : 0;
      waiting_after_20 += outcome.last_wait > 20 ? 1 : 0;
      late_steps += outcome.late_steps;
      late_waits += outcome.late_waits;
      pools.push_back(outcome.pool_of_need);
    } catch (const std::runtime_error&) {
      ++failed;
    }
  }
  std::sort(pools.begin(), pools.end());
  double sum = 0;
  for (const double pool : pools) sum += pool;
  std::printf(
      "{\"jobs\": %llu, \"failed\": %llu, \"calling_from_step_3\": %llu, \"calling_from_step_21\": %llu, \"steps_with_a_call\": %llu, "
      "\"waiting_from_step_3\": %llu, "
      "\"waiting_from_step_21\": %llu, \"waits\": %llu, \"pool_of_need\": %.4f, \"worst_pool_of_need\": %.4f}\n",
      static_cast<unsigned long long>(setting.jobs), static_cast<unsigned long long>(failed), static_cast<unsigned long long>(calling),
      static_cast<unsigned long long>(calling_after_20), static_cast<unsigned long long>(late_steps), static_cast<unsigned long long>(waiting),
      static_cast<unsigned long long>(waiting_after_20), static_cast<unsigned long long>(late_waits),
      pools.empty() ? 0 : sum / static_cast<double>(pools.size()), pools.empty() ? 0 : pools.back());
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0)) return std::fputs(kUsage, stdout) < 0 ? 1 : 0;
  Setting setting;
  try {
    setting = parse(argc, argv);
  } catch (const std::logic_error& wrong) {  // not a number, or too large for one, too
    std::fprintf(stderr, "identical_steps: the settings are not understood (%s): see --help\n", wrong.what());
    return 2;
  }
  return measure(setting);
}
