// Contexts, streams, captures, and what others take: see page_heap_world.hpp.
#include "page_heap_world.hpp"
#include "pool/core/bytes.hpp"
#include "tests/sim/cusim.h"
#include "tests/sim/sim_driver_api.hpp"

namespace cupool::fuzz {

void World::begin_context(std::size_t slot) {
  Context& own = contexts_[slot];
  if (own.handle != nullptr || capturing()) return;
  say("begin c%zu", slot);
  if (slot == 0) must(cuDevicePrimaryCtxRetain(&own.handle, 0), "cuDevicePrimaryCtxRetain");
  else must(cuCtxCreate_v2(&own.handle, 0, 0), "cuCtxCreate");
  pools_->context_seen(own.handle, 0, life_of(slot));
  must(cuCtxSetCurrent(own.handle), "cuCtxSetCurrent");
  own.streams.resize(3);
  for (CUstream& stream : own.streams) must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  context_ = slot;
}

/// Does the block stay, now that context `slot` has ended? If it does, the program sometimes frees it at once.
bool World::outlives(Blocks::value_type& entry, std::size_t slot) {
  auto& [address, block] = entry;
  if (block.context != slot) return true;
  block.has_outlived |= slot != 0 && block.mempool != 0 && !block.is_native;  // memory of pools is no context's
  if (block.has_outlived && chance(700)) return true;
  if (block.has_outlived) require(pools_->free(address).outcome == FreeOutcome::freed, "a block that outlives its context is not freed");
  require(pools_->find(address, nullptr) != Ownership::live, "the block of a dead context is still known");
  return false;
}

void World::end_context(std::size_t slot) {
  Context& own = contexts_[slot];
  if (own.handle == nullptr || capturing()) return;
  say("end c%zu", slot);
  ++tally_.deaths;
  if (slot == 0)
    must(pools_->end_context(
             own.handle, [] { return cuDevicePrimaryCtxReset_v2(0); }, [] { return true; }, PoolBlocks::go),
         "cuDevicePrimaryCtxReset");
  else
    must(pools_->end_context(
             own.handle, [&] { return cuCtxDestroy_v2(own.handle); }, [] { return true; }),
         "cuCtxDestroy");
  for (auto at = blocks_.begin(); at != blocks_.end();) at = outlives(*at, slot) ? std::next(at) : blocks_.erase(at);
  if (slot != 0) pinned_left_.insert(own.pinned.begin(), own.pinned.end());
  own = Context{};
  if (slot == 0) {
    std::erase_if(outside_, [](const auto&) { return true; });  // taken in the primary context
    outside_bytes_ = 0;
  }
  if (slot == 0) begin_context(0);
  use(contexts_[context_].handle != nullptr ? context_ : 0);
  for (auto& [address, block] : blocks_)
    if (contexts_[block.context].handle == nullptr || block.context == slot) go_on_elsewhere(block);
}

/// A block that has outlived its context is used in another one.
void World::go_on_elsewhere(Block& block) {
  ++tally_.outlived;
  block.context = context_;
  block.stream = context().streams[1 + below(2)];
}

void World::use(std::size_t slot) {
  context_ = slot;
  must(cuCtxSetCurrent(context().handle), "cuCtxSetCurrent");
}

void World::use_another() {
  const std::size_t slot = below(static_cast<std::uint32_t>(contexts_.size()));
  if (contexts_[slot].handle != nullptr) use(slot);
}

/// Waits for the GPU and tells the pool, as the shim does.
void World::wait_as_programs_do() {
  if (capturing()) return;
  Context& own = context();
  const CUstream stream = chance(500) ? nullptr : own.streams[below(static_cast<std::uint32_t>(own.streams.size()))];
  const std::uint64_t fills = pools_->lane_fills(own.handle);
  say("c%zu waits for %p", context_, static_cast<void*>(stream));
  must(stream == nullptr ? cuCtxSynchronize() : cuStreamSynchronize(stream), "a wait");
  if (fills != 0) pools_->after_stream_wait(own.handle, stream == nullptr ? 0 : name_of(stream).identity, fills);
  if (pools_->much_waits(own.handle)) pools_->after_wait(own.handle);
}

/// One ends, and the next has its handle.
void World::change_streams() {
  Context& own = context();
  CUstream& stream = own.streams[below(static_cast<std::uint32_t>(own.streams.size()))];
  if (stream == own.capturing || capturing()) return;
  for (const auto& [address, block] : blocks_)
    if (block.context == context_ && block.stream == stream) return;
  say("stream %p ends", static_cast<void*>(stream));
  pools_->stream_ending(own.handle, name_of(stream).identity);
  must(cuStreamDestroy_v2(stream), "cuStreamDestroy");
  must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

/// A capture in the current context, or its end: whatever the pool did meanwhile, it is valid.
void World::change_capture() {
  Context& own = context();
  CUgraph graph = nullptr;
  if (own.capturing != nullptr) {
    const CUstream stream = own.capturing;
    must(pools_->end_capture(
             stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }),
         "cuStreamEndCapture");
    must(cuGraphDestroy(graph), "cuGraphDestroy");
    say("capture ends");
    own.capturing = nullptr;
    return;
  }
  if (capturing()) return;
  const CUstream stream = own.streams[0];
  const auto mode = static_cast<CUstreamCaptureMode>(below(3));
  must(pools_->begin_capture(
           stream, [&] { return cuStreamBeginCapture_v2(stream, mode); }, mode),
       "cuStreamBeginCapture");
  say("capture begins");
  own.capturing = stream;
  ++tally_.captures;
}

/// Somebody else on the device takes memory, or gives it back.
void World::change_outside() {
  if (capturing() || context_ != 0) return;
  const auto& api = cusim_driver_api();
  if (!outside_.empty() && chance(600)) {
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    must(api.cuMemFree_v2(outside_.begin()->first), "cuMemFree");
    outside_bytes_ -= outside_.begin()->second;
    outside_.erase(outside_.begin());
    return;
  }
  const std::uint64_t bytes = (1 + below(6)) * 2 * kMiB;
  CUdeviceptr address = 0;
  if (outside_bytes_ + bytes > memory_bytes_ / 2 || api.cuMemAlloc_v2(&address, bytes) != CUDA_SUCCESS) return;
  say("outside %llu", static_cast<unsigned long long>(bytes));
  outside_.emplace(address, bytes);
  outside_bytes_ += bytes;
}

}  // namespace cupool::fuzz
