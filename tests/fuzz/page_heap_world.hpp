// World: a program on a page heap over the simulated driver, and the model that it must agree with.
//
// Each operation is drawn from a seed. The model knows the live blocks, a stamp in every page of each, what pinned pages cost, and
// what the program took outside the pool. After each operation: check(), the driver's ledger against the pool's, no violation, no byte lost.
// A refusal where the bytes are there is a failure too. Thread rule: one thread, one world at a time (the simulator is one).
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "pool/core/clock.hpp"
#include "pool/device/pool_set.hpp"
#include "pool/observe/live_page.hpp"

namespace cupool::fuzz {

/// What all episodes did together.
struct Tally {
  std::uint64_t operations = 0, allocations = 0, refused = 0, injected = 0, deaths = 0, pinned = 0, captures = 0, remaps = 0, moved_bytes = 0,
                natives = 0, outlived = 0, repeated_steps = 0;
};

class World {
 public:
  World(std::uint64_t seed, Tally& tally, bool print);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// One drawn operation, and everything that must be true after it.
  void step();
  /// Everything goes back; nothing is left.
  void finish();

 private:
  class SimClock final : public Clock {
   public:
    std::uint64_t now_ns() const override;
    void pause(std::uint64_t duration_ns) override;
  };
  struct Block {
    std::uint64_t bytes = 0;
    CUstream stream = nullptr;  ///< all its work is there
    std::size_t context = 0;    ///< that it came in, or in which it is used since that ended
    unsigned char value = 0;
    bool is_native = false;
    std::uint8_t mempool = 0;  ///< 0: a plain call. Of others a plain free does not wait for the block's work
    bool has_outlived = false;
  };
  struct Context {
    CUcontext handle = nullptr;
    std::vector<CUstream> streams;
    CUstream capturing = nullptr;
    std::set<std::uint64_t> pinned;  ///< pages
  };
  using Blocks = std::map<CUdeviceptr, Block>;

  [[noreturn]] void fail(const std::string& what) const;
  void require(bool holds, const char* sentence) const {
    if (!holds) fail(sentence);
  }
  void must(CUresult code, const char* call) const {
    if (code != CUDA_SUCCESS) fail(std::string(call) + ": " + std::to_string(code));
  }
  void say(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }
  bool chance(std::uint32_t in_thousand) { return below(1000) < in_thousand; }
  static StreamName name_of(CUstream stream) { return {stream, reinterpret_cast<std::uintptr_t>(stream)}; }
  /// Of blocks of memory pools: only the primary context takes them along.
  static BlockLife life_of(std::size_t slot) { return slot == 0 ? BlockLife::context : BlockLife::pool; }
  std::uint64_t draw_bytes();
  Context& context() { return contexts_[context_]; }
  bool capturing() const {
    return std::any_of(contexts_.begin(), contexts_.end(), [](const Context& one) { return one.capturing != nullptr; });
  }

  std::optional<CUdeviceptr> allocate_block(std::uint64_t bytes);
  void allocate();
  void release_block(Blocks::iterator at);
  void release();
  void repeat_steps();
  void touch(const Block& block, CUdeviceptr address, bool writes);
  void work();
  void pin();
  void inject();
  void wait_as_programs_do();
  void use(std::size_t slot);
  void use_another();
  bool outlives(Blocks::value_type& entry, std::size_t slot);
  void go_on_elsewhere(Block& block);
  void end_context(std::size_t slot);
  void begin_context(std::size_t slot);
  void change_streams();
  void change_capture();
  void change_outside();
  void check_disjoint(CUdeviceptr address, std::uint64_t bytes) const;
  std::uint64_t available_bytes() const;
  void check_refusal(std::uint64_t bytes, CUresult code);
  void check();

  std::mt19937_64 random_;
  std::uint64_t seed_;
  Tally& tally_;
  bool print_;
  bool has_faults_ = false;
  bool is_coarse_ = false;
  bool is_whole_ = false;                               ///< asks for whole pages only, as memory pools do
  std::map<std::string, std::uint64_t> failing_until_;  ///< calls of the symbol until the last one fails
  std::uint64_t memory_bytes_ = 0, limit_bytes_ = 0, page_bytes_ = 0;
  SimClock clock_;
  std::unique_ptr<observe::LiveDevice[]> lives_;
  std::unique_ptr<PoolSet> pools_;
  std::array<Context, 4> contexts_;  ///< the primary one, and some that are created
  std::size_t context_ = 0;          ///< the current one
  Blocks blocks_;
  std::set<std::uint64_t> pinned_left_;  ///< pages of ended contexts, of which a block may still live
  std::map<CUdeviceptr, std::uint64_t> outside_;
  std::uint64_t outside_bytes_ = 0;
  std::uint64_t natives_ = 0;  ///< at most so many cuMemAlloc blocks of the pool: what the driver rounds up for each it does not tell
  unsigned char value_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace cupool::fuzz
