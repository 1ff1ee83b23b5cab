// Operations on contexts (primary, created, green), peers and memory pools.
#include <algorithm>

#include "cusim.h"
#include "interleave.hpp"
#include "program.hpp"

// Its arguments changed in CUDA 13; this form is in every driver since 3.2.
extern "C" CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);

namespace explorer {

bool Program::open_context(std::size_t slot) {
  Context& context = contexts_[slot];
  const auto legacy = clocks_.open(static_cast<int>(slot), true, -1);
  if (!legacy) return false;
  if (context.primary) {
    must(cuDevicePrimaryCtxRetain(&context.handle, context.device), "cuDevicePrimaryCtxRetain");
  } else if (context.green) {
    CUdevResource resource{};
    CUdevResourceDesc description = nullptr;
    must(cuDeviceGetDevResource(context.device, &resource, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
    must(cuDevResourceGenerateDesc(&description, &resource, 1), "cuDevResourceGenerateDesc");
    must(cuGreenCtxCreate(&context.green_handle, description, context.device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate");
    must(cuCtxFromGreenCtx(&context.handle, context.green_handle), "cuCtxFromGreenCtx");
  } else {
    must(cuCtxCreate_v2(&context.handle, 0, context.device), "cuCtxCreate");
    current_[actor_] = slot;
  }
  say("c%zu = a %s context of device %d", slot, context.primary ? "primary" : context.green ? "green" : "created", context.device);
  context.live = true;
  context.legacy = *legacy;
  return true;
}

bool Program::context_create(const Op& op) {
  Context& context = contexts_[op.context];
  if (context.green && settings_.driver_version < 12050) return false;  // cuGreenCtxStreamCreate
  if (context.live || (context.primary && static_cast<std::size_t>(context.device) >= settings_.devices)) return false;
  return may_call_unsafe(op.thread) && open_context(op.context);
}

bool Program::context_destroy(const Op& op) {
  if (!contexts_[op.context].live || any_capture() || !may_call_unsafe(op.thread)) return false;
  // What others do with memory of this context is over before.
  for (std::size_t slot = 0; slot < kContexts; ++slot)
    if (contexts_[slot].live && !in_family(slot, op.context)) wait_for_context(slot, op.thread);
  const bool ended = end_context(op.context, op.thread, settings_.leaves && op.args[0] != 0);
  // A primary one comes back; with its blocks, its device's other contexts would have nothing to do.
  if (ended && contexts_[op.context].primary) open_context(op.context);
  return ended;
}

/// With live blocks, blocks whose free is not over, and its own work in flight; green ones of a primary go before it.
bool Program::end_context(std::size_t slot, std::size_t thread, bool leaves) {
  if (contexts_[slot].primary && slot == contexts_[kGreen].owner && contexts_[kGreen].live) end_context(kGreen, thread);
  release_held(clock_of(slot));
  Context& context = contexts_[slot];
  for (Graph& graph : graphs_)
    if (graph.handle != nullptr && graph.owner == context.owner) destroy_graph(graph);
  for (std::size_t i = 0; i < kStreams && context.green; ++i) {
    if (!streams_[i].live || streams_[i].context != slot) continue;
    must(cuStreamDestroy(streams_[i].handle), "cuStreamDestroy");
  }
  for (Block& block : blocks_)
    if (block.live && !block.plain && block.owner == slot && !context.primary && !context.green) leave(block, thread, leaves);
  if (context.primary) {
    must(cuDevicePrimaryCtxReset(context.device), "cuDevicePrimaryCtxReset");
    must(cuDevicePrimaryCtxRelease(context.device), "cuDevicePrimaryCtxRelease");
  } else if (context.green) {
    must(cuGreenCtxDestroy(context.green_handle), "cuGreenCtxDestroy");
  } else {
    must(cuCtxDestroy(context.handle), "cuCtxDestroy");
  }
  say("c%zu is destroyed", slot);
  forget_context(slot);
  return true;
}

/// cuCtxDestroy leaves memory of pools: the program frees it before, when nothing uses it any more because such a free does not wait, or goes on with
/// it in the primary context of the device.
void Program::leave(Block& block, std::size_t thread, bool is_left) {
  if (is_left) {
    block.outlived = true;
    block.owner = static_cast<std::size_t>(contexts_[block.owner].device);
    return;
  }
  wait_for_contexts_of(block, thread);
  enter(block.owner, thread);
  ranges_.erase(block.address);
  must(cuMemFree(block.address), "cuMemFree of what would outlive its context");
  forget(block);
}

void Program::forget_context(std::size_t slot) {
  clocks_.saw(clock_of(slot));  // its end waits for its work
  for (int i = 0; i < kTimelines; ++i)
    if (clocks_.at(i).used && clocks_.at(i).context == static_cast<int>(slot)) clocks_.at(i).retired = true;
  for (Stream& stream : streams_)
    if (stream.live && stream.context == slot) stream = Stream{};
  for (std::size_t& current : current_)
    if (current == slot) current = kNoContext;
  Context& context = contexts_[slot];
  if (!context.green) {
    for (Event& event : events_)
      if (event.handle != nullptr && event.owner == slot) event = Event{};
    for (Block& block : blocks_)
      if (block.live && block.owner == slot && !block.outlived) drop(block);
    for (auto& peers : peers_) peers[slot] = false;
    peers_[slot].fill(false);
  }
  context.live = false;
  context.handle = nullptr;
  context.green_handle = nullptr;
  context.scratch.fill(nullptr);
  context.legacy = -1;
  context.gate_held = 0;
  context.threads_own.fill(Stream{});
}

bool Program::peer(const Op& op) {
  const std::size_t to = op.args[0];
  if (settings_.is_unlinked || to >= kContexts || !contexts_[to].live || !contexts_[op.context].live || contexts_[to].green ||
      contexts_[op.context].green)
    return false;
  if (contexts_[to].device == contexts_[op.context].device || peers_[op.context][to] || !may_call_unsafe(op.thread)) return false;
  enter(op.context, op.thread);
  must(cuCtxEnablePeerAccess(contexts_[to].handle, 0), "cuCtxEnablePeerAccess");
  say("cuCtxEnablePeerAccess(c%zu)  // from c%d", to, op.context);
  peers_[op.context][to] = true;
  return true;
}

bool Program::pool_create(const Op& op) {
  if (op.args[0] >= kPools || pools_[op.args[0]] != nullptr || !contexts_[op.context].live) return false;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, contexts_[op.context].device};
  enter(op.context, op.thread);
  must(cuMemPoolCreate(&pools_[op.args[0]], &properties), "cuMemPoolCreate");
  say("cuMemPoolCreate(&p%u)  // device %d", op.args[0], contexts_[op.context].device);
  pool_devices_[op.args[0]] = contexts_[op.context].device;
  return true;
}

/// With blocks of it live: its memory goes when they do.
bool Program::pool_destroy(const Op& op) {
  if (op.args[0] >= kPools || pools_[op.args[0]] == nullptr) return false;
  must(cuMemPoolDestroy(pools_[op.args[0]]), "cuMemPoolDestroy");
  say("cuMemPoolDestroy(p%u)", op.args[0]);
  pools_[op.args[0]] = nullptr;
  return true;
}

bool Program::trim(const Op& op) {
  if (!contexts_[op.context].live || !may_call_unsafe(op.thread)) return false;
  enter(op.context, op.thread);
  CUmemoryPool pool = nullptr;
  must(cuDeviceGetDefaultMemPool(&pool, contexts_[op.context].device), "cuDeviceGetDefaultMemPool");
  must(interruptible([&] { return cuMemPoolTrimTo(pool, op.args[0]); }), "cuMemPoolTrimTo");
  say("cuMemPoolTrimTo(default pool of device %d, %u)", contexts_[op.context].device, op.args[0]);
  return true;
}

}  // namespace explorer
