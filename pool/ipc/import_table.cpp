// ImportTable: see import_table.hpp. Look-ups walk back from the address by at most the longest block that is open: queries of opened memory are
// rare.
#include "pool/ipc/import_table.hpp"

#include <algorithm>
#include <cstring>

namespace cupool::ipc {

const OpenedRegion* ImportTable::find_region(const CUipcMemHandle& handle, CUcontext context) const {
  for (const auto& [base, region] : regions_)
    if (region.context == context && std::memcmp(&region.handle, &handle, sizeof handle) == 0) return &region;
  return nullptr;
}

const OpenedRegion* ImportTable::find_region(CUdeviceptr address) const {
  auto after = regions_.upper_bound(address);
  if (after == regions_.begin()) return nullptr;
  const OpenedRegion& region = std::prev(after)->second;
  return address - region.base < region.bytes ? &region : nullptr;
}

const OpenedBlock* ImportTable::find(CUdeviceptr address) const {
  const OpenedBlock* newest = nullptr;
  for (auto after = blocks_.upper_bound({address, UINT64_MAX}); after != blocks_.begin();) {
    const OpenedBlock& block = (--after)->second;
    if (address - block.base >= longest_bytes_) break;
    if (address - block.base < block.bytes && (newest == nullptr || block.buffer_id > newest->buffer_id)) newest = &block;
  }
  return newest;
}

std::map<ImportTable::Key, OpenedBlock>::const_iterator ImportTable::oldest_at(CUdeviceptr base) const {
  const auto found = blocks_.lower_bound({base, 0});
  return found != blocks_.end() && found->second.base == base ? found : blocks_.end();
}

/// Forgets the regions that `which` names, and their blocks.
template <class Which> void ImportTable::forget(Which&& which) {
  std::erase_if(blocks_, [&](const auto& entry) { return which(regions_.at(entry.second.region)); });
  std::erase_if(regions_, [&](const auto& entry) { return which(entry.second); });
}

void ImportTable::forget_others_at(const OpenedRegion& region, std::uint64_t bytes) {
  forget([&](const OpenedRegion& known) {
    if (known.base == region.base) return known.context != region.context;
    return known.base < region.base ? region.base - known.base < known.bytes : known.base - region.base < bytes;
  });
}

void ImportTable::add_driver_open(const OpenedRegion& region, bool is_measured) {
  forget_others_at(region, is_measured ? region.bytes : 0);
  const auto [place, is_new] = regions_.try_emplace(region.base, region);
  OpenedRegion& known = place->second;
  if (is_new) {
    known.driver_opens = 0;
    known.blocks = 0;
    known.serial = serial_;
  }
  known.driver_opens += region.driver_opens;
}

CUdeviceptr ImportTable::open(CUdeviceptr region, const BlockPlace& place) {
  const auto found = regions_.find(region);
  if (found == regions_.end()) return 0;
  OpenedRegion& holder = found->second;
  if (place.bytes == 0 || place.bytes > holder.bytes || place.offset > holder.bytes - place.bytes) return 0;
  const CUdeviceptr base = region + place.offset;
  for (auto at = blocks_.lower_bound({base, 0}); at != blocks_.end() && at->second.base == base; ++at) {
    if (at->second.nonce != place.nonce) continue;
    ++at->second.references;
    ++at->second.opens;
    return base;
  }
  const std::uint64_t id = next_buffer_id_;
  blocks_.emplace(Key{base, id}, OpenedBlock{base, place.bytes, id, region, place.nonce, 1, 1, false});
  ++next_buffer_id_;
  ++holder.blocks;
  longest_bytes_ = std::max(longest_bytes_, place.bytes);
  return base;
}

ImportTable::Close ImportTable::peek_close(CUdeviceptr base, OpenedBlock& block) const {
  const auto oldest = oldest_at(base);
  if (oldest == blocks_.end()) return Close::unknown;
  block = oldest->second;
  if (block.references > 1) return Close::counted;
  return regions_.at(block.region).blocks > 1 ? Close::last_of_block : Close::last_of_region;
}

std::optional<OpenedRegion> ImportTable::close(CUdeviceptr base) {
  const auto oldest = oldest_at(base);
  if (oldest == blocks_.end()) return std::nullopt;
  const auto block = blocks_.find(oldest->first);
  if (--block->second.references > 0) return std::nullopt;
  const CUdeviceptr region = block->second.region;
  blocks_.erase(block);
  if (blocks_.empty()) longest_bytes_ = 0;
  --regions_.at(region).blocks;
  return take_idle(region);
}

std::optional<OpenedRegion> ImportTable::take_idle(CUdeviceptr base) {
  const auto found = regions_.find(base);
  if (found == regions_.end() || found->second.blocks != 0) return std::nullopt;
  const OpenedRegion gone = found->second;
  regions_.erase(found);
  return gone;
}

bool ImportTable::set_sync_memops(CUdeviceptr address, bool on) {
  const OpenedBlock* newest = find(address);
  if (newest == nullptr) return true;
  blocks_.find({newest->base, newest->buffer_id})->second.sync_memops = on;
  return on || std::none_of(blocks_.begin(), blocks_.end(),
                            [&](const auto& entry) { return entry.second.region == newest->region && entry.second.sync_memops; });
}

void ImportTable::remove_context(CUcontext context, std::uint64_t serial) {
  forget([&](const OpenedRegion& region) { return region.context == context && region.serial <= serial; });
}

std::string ImportTable::check() const {
  std::map<CUdeviceptr, std::uint32_t> blocks_in;
  for (const auto& [key, block] : blocks_) {
    const auto region = regions_.find(block.region);
    if (region == regions_.end()) return "an open block has no region";
    if (block.base < block.region || block.bytes > region->second.bytes || block.base - block.region > region->second.bytes - block.bytes)
      return "an open block reaches beyond its region";
    if (block.references == 0) return "an open block has no reference";
    if (block.bytes > longest_bytes_) return "an open block is longer than the longest";
    ++blocks_in[block.region];
  }
  CUdeviceptr end = 0;
  for (const auto& [base, region] : regions_) {
    if (base < end) return "two open regions overlap";
    if (region.blocks != blocks_in[base]) return "the blocks of a region do not add up";
    if (region.blocks != 0 && region.driver_opens == 0) return "a region with blocks is not open in the driver";
    end = base + region.bytes;
  }
  return "";
}

}  // namespace cupool::ipc
