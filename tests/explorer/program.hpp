// Program: a CUDA program that is correct whatever operations it is given, and finds out when its driver is not.
//
// It knows by vector clocks (clocks.hpp) which of its work is ordered before which. An operation that a correct program may not do now is made legal
// first (an event, a wait) or left out. Every live block is stamped by ordered fills and looked at by ordered checks; a byte that somebody else
// changed, an address that two live blocks share, an error that the native driver would not give, a capture that died, a violation in the driver: a
// hit. It knows nothing of cupool. Thread rule: one thread at a time, the holder of the baton (actors.hpp).
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "clocks.hpp"
#include "schedule.hpp"

namespace explorer {

inline constexpr std::size_t kThreads = 3, kStreams = 10, kEvents = 6, kBlocks = 64, kCaptures = 3, kGraphs = 4, kPools = 2, kDevices = 3;
inline constexpr std::size_t kCreatedContexts = 2;
inline constexpr std::size_t kContexts = kDevices + kCreatedContexts + 1;
inline constexpr std::size_t kGreen = kContexts - 1;  ///< the slot of the green context
inline constexpr std::uint32_t kLegacyStream = kStreams, kThreadsStream = kStreams + 1, kStreamNames = kStreams + 2;

struct Block {
  bool live = false;
  bool written = false;
  bool plain = false;     ///< by cuMemAlloc or cuMemAllocPitch
  bool outlived = false;  ///< the context that it came in was destroyed, and left it
  std::uint8_t value = 0;
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  std::size_t owner = 0;  ///< slot of the context it belongs to, or in which it is used
  std::uint64_t generation = 0;
  Access write;               ///< the last one; the allocation is the first
  std::vector<Access> reads;  ///< since then, one per timeline
};

struct Stream {
  bool live = false;
  CUstream handle = nullptr;
  std::size_t context = 0;
  int timeline = -1;
  int capture = -1;
};

struct Event {
  CUevent handle = nullptr;
  std::size_t owner = 0;
  bool recorded = false;
  Clock clock;
};

struct Context {
  bool live = false;
  bool green = false;
  bool primary = false;
  int device = 0;
  std::size_t owner = 0;  ///< the slot that its memory belongs to: itself, or the primary of a green one
  CUcontext handle = nullptr;
  CUgreenCtx green_handle = nullptr;
  int legacy = -1;
  std::uint64_t gate_held = 0;              ///< of the events that the whole context waits for
  std::array<CUevent, kThreads> scratch{};  ///< one per thread that puts work in order
  std::array<Stream, kThreads> threads_own{};
};

struct Node {
  std::size_t block = 0;
  std::uint64_t generation = 0;
  bool writes = false;
  std::uint8_t value = 0;
};

struct Capture {
  bool live = false;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::size_t thread = 0;
  std::size_t context = 0;
  std::uint32_t origin = 0;         ///< name of the stream
  std::vector<std::size_t> forked;  ///< slots of created streams
  CUevent event = nullptr;
  bool has_memory = false;
  std::vector<Node> nodes;
  std::map<std::size_t, int> users;  ///< of each block, the timeline that uses it
};

struct Graph {
  CUgraphExec handle = nullptr;
  std::size_t owner = 0;
  bool has_memory = false;
  std::vector<Node> nodes;
  std::uint64_t held = 0;  ///< of its launches: the next one comes after them
};

/// Work that waits for the host: for this program, which must not block before it lets go, or for somebody else.
struct Hold {
  volatile std::uint32_t* flag = nullptr;
  std::uint64_t bit = 0;  ///< in the clocks of what may come after it
  bool elsewhere = false;
};

/// A stream as an operation names it.
struct View {
  bool usable = false;
  CUstream handle = nullptr;
  std::size_t context = 0;
  int timeline = -1;
  int capture = -1;
  bool legacy = false;
};

/// What an operation names.
struct Busy {
  std::uint64_t blocks = 0;
  std::uint32_t streams = 0, events = 0, captures = 0, graphs = 0, pools = 0;

  bool meets(const Busy& other) const {
    return ((blocks & other.blocks) | (streams & other.streams) | (events & other.events) | (captures & other.captures) | (graphs & other.graphs) |
            (pools & other.pools)) != 0;
  }
};
Busy busy_of(const Op& op);

struct Settings {
  std::size_t devices = 1;
  int driver_version = 13000;
  bool frees_wait_everywhere = false;  ///< CUPOOL_FREE=sync waits for more contexts than the simulated native free
  bool is_unlinked = false;            ///< no device reaches another's memory
  bool may_be_kept = false;            ///< a driver may keep the thread that calls it behind work that waits for the host; nobody else, though
  bool leaves = false;                 ///< memory of pools may be left when cuCtxDestroy ends its context
  bool print = false;
};

struct Totals {
  std::array<std::uint64_t, kKinds> done{};
  std::array<std::uint64_t, kKinds> left_out{};
  std::uint64_t allocations = 0, frees = 0, refused = 0, own_records = 0, own_queries = 0;
  std::uint64_t digest = 14695981039346656037ULL;  ///< of everything that the driver answered
};

class Program {
 public:
  explicit Program(const Settings& settings);

  void start();
  /// False: left out, because it makes no sense now.
  bool act(const Op& op);
  /// May another thread of a correct program do `child` at any moment of `parent`?
  bool may_interrupt(const Op& parent, const Op& child) const;
  /// Ends the captures of `thread`, which calls this.
  void wind_up(std::size_t thread);
  /// Ends what is open, looks at and frees every block, ends the contexts; then nothing may be left.
  void finish();

  /// Somebody else lets go of what waits for him. False: everything that waits, waits for the thread that is asking, and is let go of.
  bool release_for_driver();
  /// Somebody else lets go of what waits for him, and of nothing more.
  void release_elsewhere();
  bool may_be_kept() const { return settings_.may_be_kept; }
  void hit(const std::string& what);
  bool is_hit() const { return !hit_.empty(); }
  const std::string& hit_text() const { return hit_; }
  const Totals& totals() const { return totals_; }
  Settings& settings() { return settings_; }

  // What the generator looks at.
  const Block& block(std::size_t slot) const { return blocks_[slot]; }
  const Stream& stream(std::size_t slot) const { return streams_[slot]; }
  const Event& event(std::size_t slot) const { return events_[slot]; }
  const Context& context(std::size_t slot) const { return contexts_[slot]; }
  const Capture& capture(std::size_t slot) const { return captures_[slot]; }
  const Graph& graph(std::size_t slot) const { return graphs_[slot]; }
  CUmemoryPool pool(std::size_t slot) const { return pools_[slot]; }
  bool any_capture() const;
  /// May a kernel of that context touch the block?
  bool may_reach(std::size_t context, const Block& block) const;
  /// The context of the last work on the block; -1 when it was never touched.
  int last_used_in(std::size_t slot) const;

 private:
  friend struct Table;

  // memory.cpp
  bool alloc_plain(const Op& op);
  bool alloc_pitch(const Op& op);
  bool alloc_ordered(const Op& op);
  bool alloc_pool(const Op& op);
  bool write(const Op& op);
  bool read(const Op& op);
  bool copy(const Op& op);
  bool free_plain(const Op& op);
  bool free_ordered(const Op& op);
  bool ask(const Op& op);
  bool info(const Op& op);
  bool took(const Op& op, CUresult result, CUdeviceptr address, std::size_t owner, bool plain, const Access& access);
  bool may_touch(const View& view, const Block& block) const { return may_reach(view.context, block); }
  void drop(Block& block);
  void forget(Block& block);
  void touch_block(const View& view, const Block& block, bool writes, std::uint8_t value, std::uint32_t duration_ns);
  bool capture_touch(const View& view, std::size_t slot, bool writes, std::uint8_t value, std::uint32_t duration_ns);

  // order.cpp
  bool record(const Op& op);
  bool wait(const Op& op);
  bool query(const Op& op);
  bool sync_event(const Op& op);
  bool query_stream(const Op& op);
  bool sync_stream(const Op& op);
  bool sync_context(const Op& op);
  bool record_context(const Op& op);
  bool wait_context(const Op& op);
  bool advance(const Op& op);
  bool spin(const Op& op);
  bool hold(const Op& op);
  bool release(const Op& op);
  bool stream_create(const Op& op);
  bool stream_destroy(const Op& op);
  bool thread_mode(const Op& op);
  bool order(const Access& access, const View& to);
  bool order_all(const Block& block, const View& to);
  bool wait_for_contexts_of(const Block& block, std::size_t thread);
  bool wait_for_context(std::size_t slot, std::size_t thread);
  void release_held(const Clock& target);
  CUevent event_in(Event& event, std::size_t owner);

  // graphs.cpp
  bool begin(const Op& op);
  bool fork(const Op& op);
  bool graph_memory(const Op& op);
  bool end(const Op& op);
  bool launch(const Op& op);
  bool graph_destroy(const Op& op);
  bool may_name_origin(const Capture& capture, const Op& op) const;
  bool end_capture(std::size_t slot, std::size_t graph_slot, const Op& op);
  bool is_replayable(const Graph& graph) const;
  void destroy_graph(Graph& graph);

  // contexts.cpp
  bool context_create(const Op& op);
  bool context_destroy(const Op& op);
  bool peer(const Op& op);
  bool pool_create(const Op& op);
  bool pool_destroy(const Op& op);
  bool trim(const Op& op);
  bool open_context(std::size_t slot);
  bool end_context(std::size_t slot, std::size_t thread, bool leaves = false);
  void leave(Block& block, std::size_t thread, bool is_left);
  void forget_context(std::size_t slot);

  // program.cpp
  View view(std::uint32_t name, const Op& op);
  void enter(std::size_t context, std::size_t thread);
  bool may_call_unsafe(std::size_t thread) const;
  bool may_use_legacy(std::size_t context) const;
  bool captures_in(std::size_t context) const;
  bool in_family(std::size_t member, std::size_t of) const;
  Clock clock_of(std::size_t context) const;
  /// The call must have succeeded; else a hit.
  bool must(CUresult result, const char* call);
  void say(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void look();

  Settings settings_;
  Clocks clocks_;
  Totals totals_;
  std::string hit_;
  std::array<Block, kBlocks> blocks_{};
  std::array<Stream, kStreams> streams_{};
  std::array<Event, kEvents> events_{};
  std::array<Context, kContexts> contexts_{};
  std::array<Capture, kCaptures> captures_{};
  std::array<Graph, kGraphs> graphs_{};
  std::array<CUmemoryPool, kPools> pools_{};
  std::array<int, kPools> pool_devices_{};
  std::array<std::array<bool, kContexts>, kContexts> peers_{};
  std::array<std::size_t, kThreads> current_{};
  std::array<CUstreamCaptureMode, kThreads> modes_{};
  std::deque<std::uint32_t> flags_;
  std::vector<Hold> holds_;
  std::map<CUdeviceptr, std::size_t> ranges_;         ///< live blocks: base to bytes
  std::array<std::uint64_t, kDevices> freed_held_{};  ///< of stream-ordered frees: an allocation may be made to wait for those
  std::uint64_t generation_ = 0;
  static thread_local std::size_t actor_;
};

inline constexpr std::size_t kNoContext = ~std::size_t{0};

}  // namespace explorer
