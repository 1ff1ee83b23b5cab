// See handle_pins.hpp.
#include "pool/observe/handle_pins.hpp"

#include <algorithm>

namespace cupool::observe {

namespace {

/// Blocks whose bytes are more than this many times the free bytes that they keep are not what is in the way. Not 1: in a handle where every other
/// block was freed, the blocks hold half of it.
constexpr std::uint64_t kBytesPerFree = 4;

/// A handle with free bytes that blocks hold, with its first and last block as indices into the list of blocks.
struct Held {
  const HandleRow* handle = nullptr;
  std::size_t first = 0;
  std::size_t last = 0;
};

bool is_within(const Held& inner, const Held& outer) { return inner.first >= outer.first && inner.last <= outer.last; }

std::vector<const BlockRow*> used_by_address(const std::vector<BlockRow>& rows) {
  std::vector<const BlockRow*> used;
  for (const BlockRow& row : rows)
    if (row.state != BlockState::free) used.push_back(&row);
  const auto before = [](const BlockRow* a, const BlockRow* b) { return a->address < b->address; };
  if (!std::is_sorted(used.begin(), used.end(), before)) std::sort(used.begin(), used.end(), before);
  return used;
}

/// The handles that nothing but blocks keeps from being empty.
std::vector<Held> held_by_blocks(const std::vector<const BlockRow*>& used, const std::vector<HandleRow>& handles) {
  std::vector<Held> held;
  std::size_t block = 0;
  for (const HandleRow& handle : handles) {
    if (handle.state != HandleState::used || handle.free_bytes == 0) continue;
    while (block < used.size() && used[block]->address + used[block]->bytes <= handle.address) ++block;
    std::size_t end = block;
    while (end < used.size() && used[end]->address < handle.address + handle.bytes) ++end;
    if (end != block) held.push_back({&handle, block, end - 1});
  }
  return held;
}

}  // namespace

HandleIndex::HandleIndex(const std::vector<HandleRow>& handles) : handles_(handles) {
  const auto before = [](const HandleRow& a, const HandleRow& b) { return a.address < b.address; };
  if (!std::is_sorted(handles_.begin(), handles_.end(), before)) std::sort(handles_.begin(), handles_.end(), before);
}

bool HandleIndex::covers(std::uint64_t address) const {
  const auto behind =
      std::upper_bound(handles_.begin(), handles_.end(), address, [](std::uint64_t at, const HandleRow& handle) { return at < handle.address; });
  return behind != handles_.begin() && address - std::prev(behind)->address < std::prev(behind)->bytes;
}

void add_handle_pins(const std::vector<BlockRow>& rows, const HandleIndex& handles, std::vector<Pin>& out) {
  const std::vector<const BlockRow*> used = used_by_address(rows);
  const std::vector<Held> held = held_by_blocks(used, handles.sorted());
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (i > 0 && held[i].first == held[i - 1].first && held[i].last == held[i - 1].last) continue;  // the same blocks were listed already
    Pin pin;
    pin.address = used[held[i].first]->address;
    pin.region = used[held[i].first]->region;
    pin.holds_region = true;
    std::uint64_t largest_block = 0;
    for (std::size_t at = held[i].first; at <= held[i].last; ++at) {
      const BlockRow& row = *used[at];
      pin.bytes += row.bytes;
      ++pin.blocks;
      if (row.state == BlockState::deferred) pin.deferred_bytes += row.bytes;
      if (row.bytes > largest_block) pin.site = row.site;
      largest_block = std::max(largest_block, row.bytes);
    }
    std::size_t from = i;
    while (from > 0 && is_within(held[from - 1], held[i])) --from;
    for (std::size_t at = from; at < held.size() && is_within(held[at], held[i]); ++at) {
      pin.pinned_free_bytes += held[at].handle->free_bytes;
      ++pin.handles;
    }
    if (pin.pinned_free_bytes > pin.bytes / kBytesPerFree) out.push_back(pin);
  }
}

}  // namespace cupool::observe
