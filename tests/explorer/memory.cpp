// Operations on blocks: allocated, stamped, looked at, copied and freed in every legal way.
#include <algorithm>

#include "cusim.h"
#include "interleave.hpp"
#include "program.hpp"

namespace explorer {
namespace {

constexpr std::size_t kWholeBytes = 16384;  ///< larger blocks are stamped in windows: both ends and the middle
constexpr std::size_t kWindowBytes = 2048;

struct Window {
  std::size_t offset;
  std::size_t bytes;
};

std::vector<Window> windows_of(std::size_t bytes) {
  if (bytes <= kWholeBytes) return {{0, bytes}};
  return {{0, kWindowBytes}, {bytes / 2 / 512 * 512, kWindowBytes}, {bytes - kWindowBytes, kWindowBytes}};
}

}  // namespace

/// Books a block, or counts the refusal. Live blocks never share an address.
bool Program::took(const Op& op, CUresult result, CUdeviceptr address, std::size_t owner, bool plain, const Access& access) {
  totals_.digest = (totals_.digest ^ address ^ static_cast<std::uint64_t>(result)) * 1099511628211ULL;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    ++totals_.refused;
    return true;
  }
  if (result != CUDA_SUCCESS) {
    hit(std::string(name_of(op.kind)) + " gave " + std::to_string(result));
    return true;
  }
  const std::size_t bytes = op.args[1];
  if (address % 512 != 0) hit("a block is not aligned to 512 bytes");
  const auto next = ranges_.lower_bound(address);
  const bool runs_into_next = next != ranges_.end() && next->first < address + bytes;
  const bool is_run_into = next != ranges_.begin() && std::prev(next)->first + std::prev(next)->second > address;
  if (runs_into_next || is_run_into) hit("block " + std::to_string(op.args[0]) + " overlaps a live one");
  ranges_[address] = bytes;
  Block& block = blocks_[op.args[0]];
  block = Block{true, false, plain, false, 0, address, bytes, owner, ++generation_, access, {}};
  ++totals_.allocations;
  return true;
}

bool Program::alloc_plain(const Op& op) {
  const std::size_t slot = op.args[0];
  if (slot >= kBlocks || blocks_[slot].live || op.args[1] == 0 || !contexts_[op.context].live || !may_call_unsafe(op.thread)) return false;
  enter(op.context, op.thread);
  CUdeviceptr address = 0;
  const CUresult result = interruptible([&] { return cuMemAlloc(&address, op.args[1]); });
  say("cuMemAlloc(&b%zu, %u) = %d  // 0x%llx", slot, op.args[1], result, address);
  return took(op, result, address, contexts_[op.context].owner, true, {});
}

bool Program::alloc_pitch(const Op& op) {
  const std::size_t slot = op.args[0];
  if (slot >= kBlocks || blocks_[slot].live || op.args[1] < 512 || !contexts_[op.context].live || !may_call_unsafe(op.thread)) return false;
  enter(op.context, op.thread);
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  Op whole_rows = op;
  whole_rows.args[1] = op.args[1] / 512 * 512;
  const CUresult result = interruptible([&] { return cuMemAllocPitch(&address, &pitch, 512, op.args[1] / 512, 4); });
  say("cuMemAllocPitch(&b%zu, &pitch, 512, %u, 4) = %d  // 0x%llx", slot, op.args[1] / 512, result, address);
  if (result == CUDA_SUCCESS && pitch != 512) hit("a pitch of " + std::to_string(pitch));
  return took(whole_rows, result, address, contexts_[op.context].owner, true, {});
}

bool Program::alloc_ordered(const Op& op) {
  const std::size_t slot = op.args[0];
  const View on = view(op.args[2], op);
  if (slot >= kBlocks || blocks_[slot].live || op.args[1] == 0 || !on.usable || on.capture >= 0 || !contexts_[op.context].live ||
      !may_call_unsafe(op.thread))
    return false;
  enter(op.context, op.thread);
  CUdeviceptr address = 0;
  const CUresult result = interruptible([&] { return cuMemAllocAsync(&address, op.args[1], on.handle); });
  say("cuMemAllocAsync(&b%zu, %u, s%u) = %d  // 0x%llx", slot, op.args[1], op.args[2], result, address);
  const Access access = clocks_.touch(on.timeline);
  clocks_.at(on.timeline).clock.held |= freed_held_[static_cast<std::size_t>(contexts_[on.context].device)];
  return took(op, result, address, contexts_[on.context].owner, false, access);
}

bool Program::alloc_pool(const Op& op) {
  const std::size_t slot = op.args[0];
  const View on = view(op.args[2], op);
  if (slot >= kBlocks || blocks_[slot].live || op.args[1] == 0 || !on.usable || on.capture >= 0 || !contexts_[op.context].live ||
      !may_call_unsafe(op.thread))
    return false;
  if (op.args[3] >= kPools || pools_[op.args[3]] == nullptr || pool_devices_[op.args[3]] != contexts_[on.context].device) return false;
  enter(op.context, op.thread);
  CUdeviceptr address = 0;
  const CUresult result = interruptible([&] { return cuMemAllocFromPoolAsync(&address, op.args[1], pools_[op.args[3]], on.handle); });
  say("cuMemAllocFromPoolAsync(&b%zu, %u, p%u, s%u) = %d  // 0x%llx", slot, op.args[1], op.args[3], op.args[2], result, address);
  const Access access = clocks_.touch(on.timeline);
  clocks_.at(on.timeline).clock.held |= freed_held_[static_cast<std::size_t>(contexts_[on.context].device)];
  return took(op, result, address, contexts_[on.context].owner, false, access);
}

/// A kernel in the stream: of the block's own context, or of one that has its peers' memory.
bool Program::may_reach(std::size_t context, const Block& block) const {
  const std::size_t from = contexts_[context].owner;
  return from == block.owner || (block.plain && peers_[from][block.owner]);
}

int Program::last_used_in(std::size_t slot) const {
  const Access& last = blocks_[slot].reads.empty() ? blocks_[slot].write : blocks_[slot].reads.back();
  return last.timeline < 0 ? -1 : clocks_.at(last.timeline).context;
}

void Program::touch_block(const View& on, const Block& block, bool writes, std::uint8_t value, std::uint32_t duration_ns) {
  for (const Window& window : windows_of(block.bytes)) {
    const CUdeviceptr at = block.address + window.offset;
    if (writes) must(cusim_launch_fill(on.handle, at, window.bytes, value, duration_ns), "the launch of a fill");
    else must(cusim_launch_check(on.handle, at, window.bytes, value, duration_ns), "the launch of a check");
  }
}

bool Program::write(const Op& op) {
  const std::size_t slot = op.args[0];
  const View on = view(op.args[1], op);
  if (slot >= kBlocks || !blocks_[slot].live || !on.usable) return false;
  Block& block = blocks_[slot];
  const auto value = static_cast<std::uint8_t>(op.args[3] % 255 + 1);
  if (on.capture >= 0) return capture_touch(on, slot, true, value, op.args[2]);
  if (!may_touch(on, block) || !order_all(block, on)) return false;
  enter(on.context, op.thread);
  say("fill<<<s%u, %u ns>>>(b%zu, 0x%02x)", op.args[1], op.args[2], slot, value);
  touch_block(on, block, true, value, op.args[2]);
  block.write = clocks_.submit(on.timeline);
  block.reads.clear();
  block.written = true;
  block.value = value;
  return true;
}

bool Program::read(const Op& op) {
  const std::size_t slot = op.args[0];
  const View on = view(op.args[1], op);
  if (slot >= kBlocks || !blocks_[slot].live || !blocks_[slot].written || !on.usable) return false;
  Block& block = blocks_[slot];
  if (on.capture >= 0) return capture_touch(on, slot, false, block.value, op.args[2]);
  if (!may_touch(on, block) || !order(block.write, on)) return false;
  enter(on.context, op.thread);
  say("check<<<s%u, %u ns>>>(b%zu, 0x%02x)", op.args[1], op.args[2], slot, block.value);
  touch_block(on, block, false, block.value, op.args[2]);
  const Access access = clocks_.submit(on.timeline);
  std::erase_if(block.reads, [&](const Access& each) { return each.timeline == access.timeline; });
  block.reads.push_back(access);
  return true;
}

/// The whole of a small block into another of the same size; between contexts by the peer copy, which needs no access.
bool Program::copy(const Op& op) {
  const std::size_t slot = op.args[0], from_slot = op.args[2];
  const View on = view(op.args[1], op);
  if (slot >= kBlocks || from_slot >= kBlocks || slot == from_slot || !on.usable || on.capture >= 0) return false;
  Block& to = blocks_[slot];
  Block& from = blocks_[from_slot];
  if (!to.live || !from.live || !from.written || to.bytes != from.bytes || to.bytes > kWholeBytes) return false;
  const std::size_t here = contexts_[on.context].owner;
  const bool stays = to.owner == here && from.owner == here;
  if (!stays && !(to.plain && from.plain)) return false;
  if (!order_all(to, on) || !order(from.write, on)) return false;
  enter(on.context, op.thread);
  if (stays) must(cuMemcpyDtoDAsync(to.address, from.address, to.bytes, on.handle), "cuMemcpyDtoDAsync");
  else
    must(cuMemcpyPeerAsync(to.address, contexts_[to.owner].handle, from.address, contexts_[from.owner].handle, to.bytes, on.handle),
         "cuMemcpyPeerAsync");
  say("%s(b%zu, b%zu, s%u)", stays ? "cuMemcpyDtoDAsync" : "cuMemcpyPeerAsync", slot, from_slot, op.args[1]);
  const Access access = clocks_.submit(on.timeline);
  std::erase_if(from.reads, [&](const Access& each) { return each.timeline == access.timeline; });
  from.reads.push_back(access);
  to.write = access;
  to.reads.clear();
  to.written = true;
  to.value = from.value;
  return true;
}

void Program::drop(Block& block) {
  ranges_.erase(block.address);
  forget(block);
}

/// Its range may be another's by now.
void Program::forget(Block& block) {
  block.live = false;
  block.reads.clear();
}

/// With work in flight: the native free waits for the block's context, whichever is current (H100, driver 580). What others do with it must be over. It
/// does not wait where the block is from cuMemAllocAsync.
bool Program::free_plain(const Op& op) {
  const std::size_t slot = op.args[0];
  if (slot >= kBlocks || !blocks_[slot].live || !contexts_[op.context].live || !may_call_unsafe(op.thread)) return false;
  Block& block = blocks_[slot];
  if (!wait_for_contexts_of(block, op.thread)) return false;
  Clock waited = clock_of(block.owner);
  if (settings_.frees_wait_everywhere)
    for (std::size_t other = 0; other < kContexts; ++other) waited.join(clock_of(other));
  Clock perhaps = waited;
  perhaps.join(clock_of(op.context));  // ours may wait for the current context's work as well
  if (block.plain) release_held(perhaps);
  enter(op.context, op.thread);
  ranges_.erase(block.address);  // another thread may get it before the free returns
  const CUresult result = interruptible([&] { return cuMemFree(block.address); });
  say("cuMemFree(b%zu)", slot);
  forget(block);
  ++totals_.frees;
  return must(result, "cuMemFree");
}

bool Program::free_ordered(const Op& op) {
  const std::size_t slot = op.args[0];
  const View on = view(op.args[1], op);
  if (slot >= kBlocks || !blocks_[slot].live || !on.usable || on.capture >= 0 || !contexts_[op.context].live || !may_call_unsafe(op.thread))
    return false;
  Block& block = blocks_[slot];
  if (!order_all(block, on)) return false;
  enter(op.context, op.thread);
  ranges_.erase(block.address);
  const CUresult result = interruptible([&] { return cuMemFreeAsync(block.address, on.handle); });
  say("cuMemFreeAsync(b%zu, s%u)", slot, op.args[1]);
  clocks_.touch(on.timeline);
  freed_held_[static_cast<std::size_t>(contexts_[block.owner].device)] |= clocks_.at(on.timeline).clock.held;
  forget(block);
  ++totals_.frees;
  return must(result, "cuMemFreeAsync");
}

bool Program::ask(const Op& op) {
  const std::size_t slot = op.args[0];
  if (slot >= kBlocks || !blocks_[slot].live || !contexts_[blocks_[slot].owner].live) return false;
  const Block& block = blocks_[slot];
  enter(block.owner, op.thread);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  must(cuMemGetAddressRange(&base, &bytes, block.address + block.bytes / 2), "cuMemGetAddressRange");
  say("cuMemGetAddressRange(b%zu + %zu)", slot, block.bytes / 2);
  if (base != block.address || bytes != block.bytes) hit("the address range of block " + std::to_string(slot) + " is another's");
  return true;
}

bool Program::info(const Op& op) {
  if (!contexts_[op.context].live) return false;
  enter(op.context, op.thread);
  std::size_t free_bytes = 0, total_bytes = 0;
  must(interruptible([&] { return cuMemGetInfo(&free_bytes, &total_bytes); }), "cuMemGetInfo");
  say("cuMemGetInfo() = %zu of %zu", free_bytes, total_bytes);
  if (free_bytes > total_bytes) hit("more memory is free than there is");
  return true;
}

}  // namespace explorer
