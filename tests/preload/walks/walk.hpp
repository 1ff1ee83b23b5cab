// A random walk of a correct program through the driver API: the same calls natively and under the library, one line for each.
//
// What the program does next follows from the seed, the number of the step and the answers so far, so any subset of the steps is a
// walk too. It keeps the rules that the explorer keeps (tests/explorer/README.md): work on a block is ordered, a block is not used
// after its free, and calls that a capture forbids are left out, because a pool hit during capture succeeds on purpose.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/preload/battery/worker.hpp"

namespace walks {

inline constexpr int kNone = -1;
inline constexpr int kThreads = 3;
inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;

/// "b7": a block, context, stream, … by its number.
inline std::string named(char letter, int index) { return letter + std::to_string(index); }

struct Context {
  enum Kind { primary, created, green };
  CUcontext handle = nullptr;
  CUgreenCtx green_handle = nullptr;
  Kind kind = primary;
  int device = 0;
  bool is_alive = true;
};

struct Stream {
  CUstream handle = nullptr;
  int context = kNone;
  int thread = kNone;  ///< the only one that can name it: its own default stream
  bool is_alive = true;
  int capture = kNone;
};

struct Capture {
  int stream = kNone;  ///< where it began
  int thread = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool is_running = true;
  std::vector<std::pair<int, int>> writes;  ///< block, value
};

struct Block {
  enum Kind { plain, pitched, ordered, managed, mapped };
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  Kind kind = plain;
  int context = kNone;  ///< that was current; of one that has outlived its own, one in which it is used
  int device = 0;
  int stream = kNone;  ///< all work on it goes here; kNone: there is none in flight, and never was
  int pool = kNone;
  int value = kNone;  ///< of every byte; kNone: never written
  bool is_alive = true;
  bool has_outlived = false;  ///< the context of its stream was destroyed, which leaves memory of pools
  CUmemGenericAllocationHandle handle = 0;
};

struct Pool {
  CUmemoryPool handle = nullptr;
  int device = 0;
  bool is_alive = true;
};

struct Executable {
  CUgraphExec handle = nullptr;
  int stream = kNone;
  std::vector<std::pair<int, int>> writes;
  bool is_alive = true;
};

struct Event {
  CUevent handle = nullptr;
  int context = kNone;
  bool is_alive = true;
};

class Walk {
 public:
  /// `is_tight`: nothing that keeps memory on purpose, captures and SYNC_MEMOPS.
  Walk(std::uint64_t seed, int devices, bool is_tight)
      : seed_(seed),
        devices_(devices),
        is_tight_(is_tight),
        holders_(static_cast<std::size_t>(devices), 0),
        peaks_(static_cast<std::size_t>(devices), 0) {}
  void begin();
  void step(std::uint64_t number);
  /// Mostly everything is given back, in the order in which it came; else the process ends as it stands, from one thread or another.
  void end();

 private:
  using Operation = void (Walk::*)();
  struct Row {
    int weight;
    const char* name;
    Operation operation;
  };
  static const std::vector<Row>& rows();

  // drawing
  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  std::size_t draw_bytes();
  template <class Thing, class Fits> int draw(const std::vector<Thing>& things, Fits fits);
  template <class Thing> int draw(const std::vector<Thing>& things) {
    return draw(things, [](const Thing& thing) { return thing.is_alive; });
  }
  int draw_idle_stream();

  // calling and printing
  template <class Call> CUresult on_thread(Call call);
  void say(const std::string& text) { line_ += " " + text; }
  void say(const char* what, std::uint64_t value) { say(std::string(what) + "=" + std::to_string(value)); }
  bool answered(const char* what, CUresult result);
  std::string label(CUcontext context) const;
  std::string label(CUmemoryPool pool) const;
  void say_attributes(const Block& block);

  // rules
  bool is_forbidden() const;  ///< a call that is unsafe in a capture, by this thread now
  bool is_captured(int context) const;
  bool is_usable(const Stream& stream) const { return stream.is_alive && contexts_[static_cast<std::size_t>(stream.context)].is_alive; }
  static bool is_default(const Stream& stream) { return stream.handle == CU_STREAM_LEGACY || stream.handle == CU_STREAM_PER_THREAD; }
  bool use(int context);                                  ///< makes it current
  bool reach(const Stream& stream, bool always = false);  ///< takes the thread that can name it, and mostly makes its context current
  void add_default_streams(int context);
  bool settle(Block& block);  ///< waits for the work on it
  void lose(int context);
  void adopt(Block& block);

  // operations
  void set_current();
  void push_context();
  void pop_context();
  void create_context();
  void destroy_context();
  void retain_primary();
  void release_primary();
  void reset_primary();
  void create_green();
  void create_stream();
  void destroy_stream();
  void create_event();
  void destroy_event();
  void cross_streams();
  void synchronise();
  void enable_peer();
  void allocate_plain();
  void allocate_pitched();
  void allocate_ordered();
  void allocate_from_pool();
  void allocate_managed();
  void map_own();
  void free_block();
  void free_many();
  void free_wrongly();
  void create_pool();
  void destroy_pool();
  void set_pool();
  void trim_pool();
  void share_pool();
  void ask_pool();
  void ask_block();
  void ask_device();
  void fill();
  void fill_now();
  void copy();
  void copy_between();
  void copy_rows();
  void read_back();
  void spin();
  void begin_capture();
  void end_capture();
  void node_memory();
  void launch_graph();
  void destroy_graph();
  void trim_graphs();
  void array();
  void host_memory();
  void registered_memory();
  void module();
  void mark_synchronous();
  void fork_child();
  void give_all_back();

  void keep(CUdeviceptr address, std::size_t bytes, Block::Kind kind, int stream, int pool);
  void free_at(int index);
  CUcontext handle_of(int context) const { return context == kNone ? nullptr : contexts_[static_cast<std::size_t>(context)].handle; }
  CUstream handle_of_stream(int stream) const { return stream == kNone ? nullptr : streams_[static_cast<std::size_t>(stream)].handle; }
  int current() const { return current_[static_cast<std::size_t>(thread_)].empty() ? kNone : current_[static_cast<std::size_t>(thread_)].back(); }

  std::uint64_t seed_;
  int devices_;
  bool is_tight_;
  bool has_green_contexts_ = false;
  std::mt19937_64 random_;
  std::string line_;
  int thread_ = 0;
  battery::Worker* workers_[kThreads - 1] = {new battery::Worker, new battery::Worker};  ///< beside the main thread; they end with the process
  std::vector<int> current_[kThreads];                                                   ///< each thread's stack of contexts
  std::vector<int> holders_;                                                             ///< of each device's primary context
  std::vector<std::size_t> peaks_;                                                       ///< of the memory that was taken from each device
  std::vector<Context> contexts_;
  std::vector<Stream> streams_;
  std::vector<Capture> captures_;
  std::vector<Block> blocks_;
  std::vector<Pool> pools_;
  std::vector<Executable> executables_;
  std::vector<Event> events_;
  std::vector<std::pair<CUmodule, int>> modules_;  ///< and the context
  std::vector<unsigned char> registered_;
  std::vector<unsigned char> bytes_;
};

template <class Thing, class Fits> int Walk::draw(const std::vector<Thing>& things, Fits fits) {
  if (things.empty()) return kNone;
  const std::size_t first = below(things.size());
  for (std::size_t i = 0; i < things.size(); ++i) {
    const std::size_t at = (first + i) % things.size();
    if (fits(things[at])) return static_cast<int>(at);
  }
  return kNone;
}

template <class Call> CUresult Walk::on_thread(Call call) {
  if (thread_ == 0) return call();
  CUresult result = CUDA_SUCCESS;
  workers_[thread_ - 1]->run([&] { result = call(); });
  return result;
}

}  // namespace walks
