// See page_heap_world.hpp. Over 250 lines because every operation stands beside what must be true of it.
#include "page_heap_world.hpp"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "pool/core/bytes.hpp"
#include "tests/sim/cusim.h"
#include "tests/sim/sim_driver_api.hpp"

namespace cupool::fuzz {
namespace {

constexpr std::uint64_t kPiece_bytes = 64;             ///< of a stamp: at both ends of a block and of each of its pages
constexpr std::uint64_t kDriverPage_bytes = 2 * kMiB;  ///< what the simulator's cuMemAlloc takes whole
constexpr std::size_t kMostBlocks = 40;
constexpr std::uint8_t kMempools = 3;
constexpr std::uint64_t kMs = 1'000'000;
/// Calls that fail now and then. Not those that tell of work: what they answer is the program's own news.
constexpr const char* kFailing[] = {"cuMemAddressReserve", "cuMemCreate",      "cuMemMap",        "cuMemSetAccess", "cuMemUnmap",
                                    "cuMemRelease",        "cuMemAddressFree", "cuMemGetInfo_v2", "cuMemAlloc_v2"};
constexpr CUresult kCodes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,  CUDA_ERROR_INVALID_VALUE,
                               CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_READY};

}  // namespace

std::uint64_t World::SimClock::now_ns() const { return cusim_now_ns(); }
void World::SimClock::pause(std::uint64_t duration_ns) { cusim_advance_ns(duration_ns); }

void World::fail(const std::string& what) const {
  for (const auto& [address, block] : blocks_)
    say("live %llx %llu c%zu%s", static_cast<unsigned long long>(address), static_cast<unsigned long long>(block.bytes), block.context,
        block.is_native ? " native" : "");
  for (std::size_t i = 0; i < contexts_.size(); ++i)
    for (const std::uint64_t page : contexts_[i].pinned) say("pinned %llx c%zu", static_cast<unsigned long long>(page * page_bytes_), i);
  const observe::Counters& counters = lives_[0].counters;
  say("reserved %llu mapped %llu deferred %llu live %llu outside %llu used %llu",
      static_cast<unsigned long long>(counters.reserved_bytes.current.load()), static_cast<unsigned long long>(counters.mapped_bytes.current.load()),
      static_cast<unsigned long long>(counters.deferred_bytes.current.load()), static_cast<unsigned long long>(counters.live_bytes.current.load()),
      static_cast<unsigned long long>(outside_bytes_), static_cast<unsigned long long>(cusim_used_bytes(0)));
  std::fprintf(stderr, "page_heap_fuzz: seed %llu, operation %llu: %s\n", static_cast<unsigned long long>(seed_),
               static_cast<unsigned long long>(steps_), what.c_str());
  std::abort();
}

void World::say(const char* format, ...) const {
  if (!print_) return;
  std::va_list arguments;
  va_start(arguments, format);
  std::printf("%llu  ", static_cast<unsigned long long>(steps_));
  std::vprintf(format, arguments);
  std::printf("\n");
  va_end(arguments);
}

World::World(std::uint64_t seed, Tally& tally, bool print) : random_(seed), seed_(seed), tally_(tally), print_(print) {
  has_faults_ = chance(600);
  memory_bytes_ = std::array{24 * kMiB, 48 * kMiB, 96 * kMiB, 161 * kMiB}[below(4)];
  is_coarse_ = chance(200);  // handles of several pages, and zones
  if (is_coarse_) memory_bytes_ = std::array{2 * kGiB, 6 * kGiB, 24 * kGiB}[below(3)];
  is_whole_ = is_coarse_ && chance(500);
  page_bytes_ = chance(150) ? 4 * kMiB : 2 * kMiB;
  cusim_configure("MEMORY", std::to_string(memory_bytes_).c_str());
  cusim_configure("GRANULARITY", std::to_string(page_bytes_).c_str());
  cusim_configure("REUSE_HANDLES", "1");
  cusim_configure("VMM_RDMA", chance(100) ? "refused" : "1");
  cusim_reset();
  must(cusim_driver_api().cuInit(0), "cuInit");
  config::Options options;
  options.backing = config::Backing::pages;
  limit_bytes_ = chance(400) ? memory_bytes_ / 4 * (1 + below(3)) + below(3) * 700 * kKiB : memory_bytes_;
  if (limit_bytes_ != memory_bytes_) options.limit.all = config::parse_amount(std::to_string(limit_bytes_));
  if (chance(200)) options.release_threshold_bytes = below(3) * 8 * kMiB;
  if (chance(is_whole_ ? 500 : 150))
    options.policy = config::Policy::preallocate, options.preallocate = config::parse_amount(chance(500) ? "50%" : "9MiB");
  lives_ = std::make_unique<observe::LiveDevice[]>(observe::kMaxDevices);
  pools_ = std::make_unique<PoolSet>(cusim_driver_api(), options, lives_.get(), observe::kMaxDevices, &clock_);
  begin_context(0);
  say("memory %llu, limit %llu, page %llu, faults %d", static_cast<unsigned long long>(memory_bytes_), static_cast<unsigned long long>(limit_bytes_),
      static_cast<unsigned long long>(page_bytes_), has_faults_);
}

World::~World() {
  const observe::Counters& counters = lives_[0].counters;
  tally_.operations += steps_;
  tally_.remaps += counters.remaps.value.load();
  tally_.moved_bytes += counters.moved_bytes.value.load();
  tally_.natives += counters.native_fallbacks.value.load();
}

std::uint64_t World::draw_bytes() {
  if (is_whole_) return align_up(chance(400) ? memory_bytes_ / 64 * (1 + below(12)) : page_bytes_ * (1 + below(20)), page_bytes_);
  if (is_coarse_ && chance(400)) return memory_bytes_ / 64 * (1 + below(12)) + below(5) * 300 * kKiB;
  switch (below(5)) {
    case 0: return 1 + below(64 << 10);
    case 1: return page_bytes_ / 2 * (1 + below(6));
    case 2: return page_bytes_ * (1 + below(4)) + (chance(500) ? 512 : 0);
    case 3: return 1 + below(12 << 20);
    default: return 1 + below(3 << 20);
  }
}

void World::check_disjoint(CUdeviceptr address, std::uint64_t bytes) const {
  const auto after = blocks_.lower_bound(address);
  require(after == blocks_.end() || address + bytes <= after->first, "a block reaches into the next one");
  require(after == blocks_.begin() || std::prev(after)->first + round_request(std::prev(after)->second.bytes) <= address,
          "a block begins inside another one");
}

/// What whole pages can be had of, when all work is over: the pages without a live byte, and what was never taken.
std::uint64_t World::available_bytes() const {
  std::set<std::uint64_t> pages;
  std::uint64_t natives_bytes = 0;
  for (const auto& [address, block] : blocks_) {
    if (block.is_native) natives_bytes += align_up(block.bytes, kDriverPage_bytes);
    else
      for (std::uint64_t page = address / page_bytes_; page <= (address + block.bytes - 1) / page_bytes_; ++page) pages.insert(page);
  }
  for (const Context& one : contexts_) pages.insert(one.pinned.begin(), one.pinned.end());
  pages.insert(pinned_left_.begin(), pinned_left_.end());
  const std::uint64_t most_bytes = std::min(memory_bytes_ - outside_bytes_, limit_bytes_);
  const std::uint64_t taken_bytes = pages.size() * page_bytes_ + natives_bytes;
  return most_bytes - std::min(most_bytes, taken_bytes);
}

/// Out of memory only when the bytes are gone: what is free in pieces is gathered, what waits for work is waited for.
void World::check_refusal(std::uint64_t bytes, CUresult code) {
  ++tally_.refused;
  require(code == CUDA_ERROR_OUT_OF_MEMORY, "an allocation fails by another error than out of memory");
  if (has_faults_ || capturing()) return;
  if (is_coarse_) {  // a block keeps the whole handle that it lies on, which the model does not know
    const std::uint64_t untaken_bytes = std::min(memory_bytes_ - std::min(memory_bytes_, cusim_used_bytes(0)),
                                                 limit_bytes_ - std::min(limit_bytes_, lives_[0].counters.reserved_bytes.current.load()));
    return require(align_up(bytes, page_bytes_) > untaken_bytes, "out of memory, while the driver has enough");
  }
  if (align_up(bytes, page_bytes_) <= available_bytes())
    fail("out of memory for " + std::to_string(bytes) + " bytes, while whole pages of " + std::to_string(available_bytes()) + " are free");
}

void World::allocate() {
  if (blocks_.size() >= kMostBlocks) return release();
  static_cast<void>(allocate_block(draw_bytes()));
}

std::optional<CUdeviceptr> World::allocate_block(std::uint64_t bytes) {
  Context& own = context();
  const CUstream stream = own.streams[below(static_cast<std::uint32_t>(own.streams.size()))];
  if (stream == own.capturing) return std::nullopt;
  const auto mempool = static_cast<std::uint8_t>(chance(400) ? 1 + below(kMempools) : 0);
  const Result<CUdeviceptr> made = mempool != 0
                                       ? pools_->allocate_on(own.handle, bytes, name_of(stream), mempool, "cuMemAllocAsync", life_of(context_))
                                       : pools_->allocate(own.handle, bytes, "cuMemAlloc_v2");
  say("c%zu %p allocate from %d, %llu = %d %llx", context_, static_cast<void*>(stream), mempool, static_cast<unsigned long long>(bytes), made.code(),
      made.ok() ? made.value() : 0);
  if (!made.ok()) {
    const bool is_the_drivers = made.code() == CUDA_ERROR_NOT_SUPPORTED && mempool != 0 && context_ != 0;  // none of our memory can outlive a context
    if (!is_the_drivers) check_refusal(bytes, made.code());
    return std::nullopt;
  }
  ++tally_.allocations;
  check_disjoint(made.value(), round_request(bytes));
  BlockView view;
  require(pools_->find(made.value(), &view) == Ownership::live && view.context == own.handle && view.bytes == bytes,
          "a new block is not found, or is another");
  const Block block{bytes, stream, context_, ++value_, view.is_native, mempool, false};
  blocks_.emplace(made.value(), block);
  natives_ += block.is_native ? 1 : 0;
  touch(block, made.value(), true);
  return made.value();
}

void World::release() {
  if (!blocks_.empty()) release_block(std::next(blocks_.begin(), below(static_cast<std::uint32_t>(blocks_.size()))));
}

void World::release_block(Blocks::iterator at) {
  const Block block = at->second;
  const CUdeviceptr address = at->first;
  const bool ordered = chance(400);
  if (contexts_[block.context].capturing == block.stream) return;
  const bool must_wait = block.mempool != 0 && !ordered;
  if (must_wait && capturing()) return;
  touch(block, address, false);
  if (must_wait) must(cuStreamSynchronize(block.stream), "cuStreamSynchronize");
  const FreeResult result = ordered ? pools_->free_on(address, contexts_[block.context].handle, name_of(block.stream)) : pools_->free(address);
  say("%s %llx = %d %d", ordered ? "free_on" : "free", address, static_cast<int>(result.outcome), result.error.code);
  require(result.outcome == FreeOutcome::freed, "a free does not free");
  blocks_.erase(at);
  require(pools_->find(address, nullptr) != Ownership::live, "a freed block is still live");
}

/// Steps of a job that repeats itself: the same sizes in the same order.
void World::repeat_steps() {
  std::vector<std::uint64_t> sizes(3 + below(12));
  for (std::uint64_t& bytes : sizes) bytes = draw_bytes();
  const std::uint32_t steps = 2 + below(6);
  const bool waits = chance(300);
  for (std::uint32_t i = 0; i < steps; ++i) {
    std::vector<CUdeviceptr> made;
    for (const std::uint64_t bytes : sizes)
      if (const std::optional<CUdeviceptr> address = allocate_block(bytes)) made.push_back(*address);
    for (const CUdeviceptr address : made) release_block(blocks_.find(address));
    if (waits && !capturing()) wait_as_programs_do();
    ++tally_.repeated_steps;
    check();
  }
}

/// Writes the block's stamp, or looks whether it is still there, when the stream gets to it.
void World::touch(const Block& block, CUdeviceptr address, bool writes) {
  must(cuCtxSetCurrent(contexts_[block.context].handle), "cuCtxSetCurrent");
  std::uint64_t duration_ns = chance(200) ? below(2 * kMs) : below(50'000);
  const std::uint64_t end = address + block.bytes;
  for (std::uint64_t at = address; at < end; at = align_up(at + 1, page_bytes_)) {
    const std::uint64_t page_end = std::min(align_up(at + 1, page_bytes_), end);
    for (const std::uint64_t piece : {at, page_end - std::min(page_end - at, kPiece_bytes)}) {
      const std::size_t bytes = std::min(kPiece_bytes, page_end - piece);
      must(writes ? cusim_launch_fill(block.stream, piece, bytes, block.value, duration_ns)
                  : cusim_launch_check(block.stream, piece, bytes, block.value, duration_ns),
           "launch");
      duration_ns = 0;
    }
  }
  must(cuCtxSetCurrent(context().handle), "cuCtxSetCurrent");
}

void World::work() {
  if (blocks_.empty()) return;
  const auto at = std::next(blocks_.begin(), below(static_cast<std::uint32_t>(blocks_.size())));
  if (contexts_[at->second.context].capturing == at->second.stream) return;
  if (chance(500)) at->second.value = ++value_, touch(at->second, at->first, true);
  else touch(at->second, at->first, false);
}

void World::pin() {
  if (blocks_.empty()) return;
  const auto at = std::next(blocks_.begin(), below(static_cast<std::uint32_t>(blocks_.size())));
  pools_->pin_pages(at->first);
  say("pin %llx", at->first);
  if (at->second.is_native) return;
  ++tally_.pinned;
  for (std::uint64_t page = at->first / page_bytes_; page <= (at->first + at->second.bytes - 1) / page_bytes_; ++page)
    contexts_[at->second.context].pinned.insert(page);
}

void World::inject() {
  const char* symbol = kFailing[below(std::size(kFailing))];
  const bool is_native = std::string(symbol) == "cuMemAlloc_v2";  // what that says is the program's answer
  const CUresult code = is_native ? CUDA_ERROR_OUT_OF_MEMORY : kCodes[below(std::size(kCodes))];
  const unsigned nth = 1 + below(6), times = 1 + below(2);  // never three in a row: what a dead context left behind is asked for so often
  if (cusim_calls(symbol) < failing_until_[symbol]) return;
  failing_until_[symbol] = cusim_calls(symbol) + nth + times - 1;
  say("fail %s %u %d %u", symbol, nth, code, times);
  cusim_fail(symbol, nth, code, times);
  ++tally_.injected;
}

void World::step() {
  ++steps_;
  const std::uint32_t drawn = below(1000);
  if (drawn < 380) allocate();
  else if (drawn < 700) release();
  else if (drawn < 800) work();
  else if (drawn < 870) cusim_advance_ns(chance(100) ? below(20 * kMs) : below(300'000));
  else if (drawn < 895) wait_as_programs_do();
  else if (drawn < 897) repeat_steps();
  else if (drawn < 900) pin();
  else if (drawn < 940) has_faults_ ? inject() : work();
  else if (drawn < 950) pools_->trim();
  else if (drawn < 958) pools_->make_room();
  else if (drawn < 966) change_streams();
  else if (drawn < 976) change_capture();
  else if (drawn < 984) change_outside();
  else if (drawn < 987) pools_->snapshot(std::chrono::seconds(10));
  else if (drawn < 991) end_context(chance(300) ? 0 : 1 + below(static_cast<std::uint32_t>(contexts_.size()) - 1));
  else if (drawn < 995) begin_context(1 + below(static_cast<std::uint32_t>(contexts_.size()) - 1));
  else use_another();
  check();
}

void World::check() {
  if (const std::string broken = pools_->check(); !broken.empty()) fail(broken);
  const observe::Counters& counters = lives_[0].counters;
  const std::uint64_t reserved_bytes = counters.reserved_bytes.current.load();
  const std::uint64_t driver_bytes = cusim_used_bytes(0) - outside_bytes_;
  if (reserved_bytes > driver_bytes || reserved_bytes + natives_ * kDriverPage_bytes < driver_bytes)
    fail("the pool says that it holds " + std::to_string(reserved_bytes) + " bytes, the driver " + std::to_string(driver_bytes));
  require(reserved_bytes <= limit_bytes_, "the pool holds more than its limit");
  std::uint64_t live_bytes = 0;
  for (const auto& [address, block] : blocks_) live_bytes += round_request(block.bytes);
  require(counters.live_bytes.current.load() == live_bytes && counters.live_blocks.current.load() == blocks_.size(),
          "live blocks are not those of the program");
  for (std::uint8_t mempool = 1; mempool <= kMempools; ++mempool) {
    std::uint64_t used_bytes = 0;
    for (const auto& [address, block] : blocks_)
      if (block.mempool == mempool) used_bytes += block.bytes;
    require(pools_->mempool_figures(0, mempool).used_bytes == used_bytes, "a memory pool has used another sum than its blocks");
  }
  require(cusim_mismatched_bytes() == 0, "bytes of a live block have changed");
  if (cusim_violation_count() != 0) fail(std::string("the driver saw: ") + cusim_violation(0));
}

void World::finish() {
  while (capturing()) {
    for (std::size_t slot = 0; slot < contexts_.size(); ++slot)
      if (contexts_[slot].capturing != nullptr) use(slot);
    change_capture();
  }
  while (!blocks_.empty()) release();
  for (Context& own : contexts_) {
    if (own.handle == nullptr) continue;
    must(cuCtxSetCurrent(own.handle), "cuCtxSetCurrent");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
  }
  must(cuCtxSetCurrent(context().handle), "cuCtxSetCurrent");
  check();
  for (std::size_t slot = contexts_.size(); slot-- > 0;) end_context(slot);
  check();
  require(cusim_used_bytes(0) == 0, "every context has ended, and memory is still taken");
}

}  // namespace cupool::fuzz
