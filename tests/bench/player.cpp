#include "player.hpp"

#include <time.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "device_work.hpp"
#include "driver_calls.hpp"
#include "trace.hpp"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

/// What a block must hold at its start and at its end: nobody else's bytes look like this.
using Stamp = std::array<std::uint64_t, 2>;
Stamp stamp_of(std::uint32_t slot) { return {0x9e3779b97f4a7c15ULL * (slot + 1ULL), ~std::uint64_t{slot}}; }

/// Of this thread: a busy machine is no finding.
double processor_ns() {
  timespec value{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &value);
  return static_cast<double>(value.tv_sec) * 1e9 + static_cast<double>(value.tv_nsec);
}

struct Block {
  char* address = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t stream = 0;
};

struct Corruption {
  std::uint32_t slot;
};

class Player {
 public:
  Player(const trace::Trace& trace, const Order& order, Allocator& allocator, const Copies& copies)
      : trace_(trace), order_(order), allocator_(allocator), copies_(copies), blocks_(trace.allocations) {
    if (order.frees_behind > 0) work_.emplace(order.frees_behind);
  }

  void play() {
    for (std::uint64_t step = 0; step < order_.steps; ++step) {
      for (next_ = 0; next_ < trace_.events.size(); ++next_) {
        const trace::Event& event = trace_.events[next_];
        if (event.is_free) {
          release(event.slot);
        } else if (blocks_[event.slot].address == nullptr) {  // else it is what the first step left
          allocate(event.slot, event.bytes, event.stream);
        }
      }
      if (order_.wait_each_step) wait_for_device();
      if (order_.steps > 1) note_calls();
    }
  }
  /// What is left at the end of the trace; a training job leaves its weights.
  void release_rest() {
    for (std::uint32_t slot = 0; slot < blocks_.size(); ++slot) {
      if (blocks_[slot].address != nullptr) release(slot);
    }
  }
  std::uint64_t mismatched_bytes() { return work_ ? work_->finish() : 0; }
  std::size_t position() const { return next_; }
  std::uint64_t verified() const { return verified_; }
  /// What the driver was called for until the end of each step, where it counts; empty for a single one.
  const std::vector<std::optional<DriverCalls>>& after_step() const { return after_step_; }
  /// Real time inside the allocator's calls: waiting for the device is part of it.
  double nanoseconds_in_calls() const { return in_calls_.count(); }

 private:
  /// The stream that touches the block. Memory that is not stream-ordered is touched on two in turn, so that reuse before the work of
  /// the other one is over shows.
  void* touching_stream(std::uint32_t slot) { return allocator_.stream_handle(allocator_.is_stream_ordered() ? blocks_[slot].stream : slot % 2); }

  /// The program's own wait is none of what the steps cost.
  void wait_for_device() {
    const std::uint64_t before = driver_calls().value_or(DriverCalls{}).waits;
    allocator_.wait_for_device();
    own_waits_ += driver_calls().value_or(DriverCalls{}).waits > before ? 1U : 0U;
  }
  void note_calls() {
    std::optional<DriverCalls> calls = driver_calls();
    if (calls) calls->waits -= own_waits_;
    after_step_.push_back(calls);
  }

  void allocate(std::uint32_t slot, std::uint64_t bytes, std::uint32_t stream) {
    void* const address = timed([&] { return allocator_.allocate(bytes, stream); });
    blocks_[slot] = {static_cast<char*>(address), bytes, stream};
    if (work_) work_->write(touching_stream(slot), address, slot);
    if (!order_.verify) return;
    const Stamp stamp = stamp_of(slot);
    const std::size_t length = std::min<std::size_t>(bytes, sizeof(stamp));
    copies_.to_device(address, stamp.data(), length);
    copies_.to_device(blocks_[slot].address + bytes - length, stamp.data(), length);
  }

  void release(std::uint32_t slot) {
    Block& block = blocks_[slot];
    if (order_.verify) verify(slot, block);
    if (work_) work_->read(touching_stream(slot), block.address, slot);
    timed([&] {
      allocator_.release(block.address, block.bytes, block.stream);
      return nullptr;
    });
    block.address = nullptr;
  }

  void verify(std::uint32_t slot, const Block& block) {
    const Stamp wanted = stamp_of(slot);
    const std::size_t length = std::min<std::size_t>(block.bytes, sizeof(wanted));
    Stamp found{};
    // The end was stamped last: where a small block's two stamps overlap, only the end is whole.
    copies_.to_host(found.data(), block.address + block.bytes - length, length);
    if (std::memcmp(found.data(), wanted.data(), length) != 0) throw Corruption{slot};
    if (block.bytes >= 2 * sizeof(wanted)) {
      copies_.to_host(found.data(), block.address, length);
      if (std::memcmp(found.data(), wanted.data(), length) != 0) throw Corruption{slot};
    }
    ++verified_;
  }

  /// The clock is read around a call only where something else is done between calls.
  template <class Call> void* timed(Call&& call) {
    if (!work_) return call();
    const auto start = Clock::now();
    void* const result = call();
    in_calls_ += Clock::now() - start;
    return result;
  }

  const trace::Trace& trace_;
  const Order& order_;
  Allocator& allocator_;
  const Copies& copies_;
  std::optional<DeviceWork> work_;
  std::vector<Block> blocks_;
  std::size_t next_ = 0;
  std::uint64_t verified_ = 0;
  std::vector<std::optional<DriverCalls>> after_step_;
  std::uint64_t own_waits_ = 0;
  std::chrono::duration<double, std::nano> in_calls_{0};
};

/// Host memory of this process in bytes, by the names of /proc/self/status; 0 where the system does not say.
struct HostMemory {
  std::uint64_t peak = 0;     ///< the most that was resident, code and libraries included
  std::uint64_t written = 0;  ///< what is written and resident now: anonymous, and shared (the pool's live page)
};

HostMemory host_memory() {
  HostMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) memory.peak = kib * 1024;
    if ((word == "RssAnon:" || word == "RssShmem:") && status >> kib) memory.written += kib * 1024;
  }
  return memory;
}

/// `, "steps": [{"memory_calls": …}, …]`: what each step called the driver for; "" where nobody counted.
std::string steps_json(const Player& player) {
  std::string text;
  DriverCalls before{};
  for (const std::optional<DriverCalls>& after : player.after_step()) {
    if (!after) return "";
    text += (text.empty() ? ", \"steps\": [" : ", ");
    text += "{\"memory_calls\": " + std::to_string(after->memory - before.memory) + ", \"waits\": " + std::to_string(after->waits - before.waits) +
            ", \"event_calls\": " + std::to_string(after->events - before.events) + "}";
    before = *after;
  }
  return text.empty() ? "" : text + "]";
}

void print_outcome(const trace::Trace& trace, const Order& order, const Player& player, double seconds, double cpu_ns, std::uint64_t written_before) {
  const auto allocations = static_cast<unsigned long long>(trace.allocations);
  const auto frees = static_cast<unsigned long long>(trace.frees);
  if (order.json) {
    const HostMemory memory = host_memory();
    const double in_calls_ns = order.frees_behind > 0 ? player.nanoseconds_in_calls() : cpu_ns;
    std::printf(
        "{\"allocations\": %llu, \"frees\": %llu, \"peak_live_bytes\": %llu, \"seconds\": %.6f, \"ns_per_call\": %.2f, "
        "\"host_peak_bytes\": %llu, \"host_written_bytes\": %llu, \"host_written_before_bytes\": %llu%s}\n",
        allocations, frees, static_cast<unsigned long long>(trace.peak_live_bytes), seconds,
        in_calls_ns / static_cast<double>(std::max<std::size_t>(trace.events.size() * order.steps, 1)), static_cast<unsigned long long>(memory.peak),
        static_cast<unsigned long long>(memory.written), static_cast<unsigned long long>(written_before), steps_json(player).c_str());
    return;
  }
  std::printf("replay: %llu allocations, %llu frees, peak %.2f GiB requested, %.3f s", allocations, frees,
              static_cast<double>(trace.peak_live_bytes) / (1 << 30), seconds);
  if (player.verified() > 0) std::printf(", %llu blocks verified", static_cast<unsigned long long>(player.verified()));
  std::printf("\n");
}

int play(const Order& order, const trace::Trace& trace, Allocator& allocator, const Copies& copies) {
  Player player(trace, order, allocator, copies);
  const std::uint64_t written_before = host_memory().written;
  try {
    const auto start = Clock::now();
    const double start_cpu_ns = processor_ns();
    player.play();
    const double cpu_ns = processor_ns() - start_cpu_ns;
    const std::chrono::duration<double> seconds = Clock::now() - start;
    if (order.free_rest) player.release_rest();
    if (const std::uint64_t bytes = player.mismatched_bytes(); bytes > 0) {
      std::fprintf(stderr, "replay: %llu bytes changed under pending work\n", static_cast<unsigned long long>(bytes));
      return kExitCorrupt;
    }
    print_outcome(trace, order, player, seconds.count(), cpu_ns, written_before);
    return 0;
  } catch (const AllocatorFailure& failure) {
    std::fprintf(stderr, "replay: %s at event %zu of %zu%s%s\n", failure.what(), player.position() + 1, trace.events.size(),
                 failure.reason.empty() ? "" : ": ", failure.reason.c_str());
    return failure.out_of_memory ? kExitOutOfMemory : kExitCudaError;
  } catch (const Corruption& corruption) {
    std::fprintf(stderr, "replay: block %u does not hold what was written into it (event %zu)\n", corruption.slot, player.position() + 1);
    return kExitCorrupt;
  }
}

/// A number from 1 up.
bool parse_count(const std::string& text, std::uint64_t* count) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *count);
  return error == std::errc{} && end == text.data() + text.size() && *count > 0;
}

bool parse(int argc, char** argv, Order* order) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--verify") {
      order->verify = true;
    } else if (argument == "--free-rest") {
      order->free_rest = true;
    } else if (argument == "--wait-each-step") {
      order->wait_each_step = true;
    } else if (argument == "--json") {
      order->json = true;
    } else if (argument == "--allocator" && has_value) {
      order->allocator = argv[++i];
    } else if (argument == "--pending" && has_value) {
      if (!parse_count(argv[++i], &order->frees_behind)) return false;
    } else if (argument == "--steps" && has_value) {
      if (!parse_count(argv[++i], &order->steps)) return false;
    } else if (order->path.empty() && argument.rfind("--", 0) != 0) {
      order->path = argument;
    } else {
      return false;
    }
  }
  return !order->path.empty();
}

}  // namespace

int play_main(int argc, char** argv, const char* allocator_names, const std::function<std::unique_ptr<Allocator>(const Order&)>& open,
              const Copies& copies) {
  Order order;
  if (!parse(argc, argv, &order)) {
    std::fprintf(
        stderr, "usage: replay [--allocator %s] [--pending FREES] [--steps N] [--wait-each-step] [--verify] [--free-rest] [--json] FILE.trace[.gz]\n",
        allocator_names);
    return kExitUsage;
  }
  try {
    const trace::Trace trace = trace::load(order.path);
    const std::unique_ptr<Allocator> allocator = open(order);
    if (allocator == nullptr) {
      std::fprintf(stderr, "replay: no allocator '%s': %s\n", order.allocator.c_str(), allocator_names);
      return kExitUsage;
    }
    return play(order, trace, *allocator, copies);
  } catch (const trace::BadTrace& error) {
    std::fprintf(stderr, "replay: %s\n", error.what());
    return kExitBadTrace;
  } catch (const AllocatorFailure& failure) {
    std::fprintf(stderr, "replay: %s%s%s\n", failure.what(), failure.reason.empty() ? "" : ": ", failure.reason.c_str());
    return failure.out_of_memory ? kExitOutOfMemory : kExitCudaError;
  }
}

}  // namespace bench
