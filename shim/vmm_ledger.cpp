// See vmm_ledger.hpp.
#include "shim/vmm_ledger.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cupool::shim {

std::uint64_t VmmLedger::key_of(Handle handle) const {
  const auto found = by_handle_.find(handle);
  return found != by_handle_.end() ? found->second : 0;
}

std::uint64_t VmmLedger::created(Handle handle) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t key = next_key_;
  by_handle_[handle] = 0;  // whatever throws, what had the handle before is known by it no more
  physical_[key] = Physical{1, 0};
  by_handle_[handle] = key;
  return next_key_++;
}

void VmmLedger::retained(Handle handle, CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  std::uint64_t key = key_of(handle);
  if (key == 0) {  // a handle again of what was released and is still mapped
    auto mapping = by_address_.upper_bound(address);
    if (mapping == by_address_.begin() || address - std::prev(mapping)->first >= std::prev(mapping)->second.bytes) return;
    key = std::prev(mapping)->second.key;
    by_handle_[handle] = key;
  }
  ++physical_[key].references;
}

void VmmLedger::mapped(Handle handle, CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t key = key_of(handle);
  if (key == 0) return;
  by_address_[address] = Mapping{bytes, key};
  ++physical_[key].mappings;
}

VmmLedger::Released VmmLedger::released(Handle handle) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t key = key_of(handle);
  if (key == 0) return {};
  Physical& physical = physical_[key];
  if (--physical.references > 0) return {key, false};
  by_handle_.erase(handle);
  if (physical.mappings > 0) return {key, false};
  physical_.erase(key);
  return {key, true};
}

void VmmLedger::not_released(Handle handle, const Released& what) {
  if (what.key == 0) return;
  const std::lock_guard lock(mutex_);
  by_handle_[handle] = what.key;
  ++physical_[what.key].references;
}

std::vector<std::uint64_t> VmmLedger::unmapped(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> gone;
  const auto first = by_address_.lower_bound(address);
  // Before anything is changed
  gone.reserve(static_cast<std::size_t>(std::distance(first, by_address_.lower_bound(address + std::max<std::size_t>(bytes, 1)))));
  for (auto mapping = first; mapping != by_address_.end() && mapping->first - address < bytes;) {
    const std::uint64_t key = mapping->second.key;
    mapping = by_address_.erase(mapping);
    if (loses_mapping(key)) gone.push_back(key);
  }
  return gone;
}

bool VmmLedger::loses_mapping(std::uint64_t key) {
  const auto physical = physical_.find(key);
  if (physical == physical_.end() || --physical->second.mappings > 0 || physical->second.references > 0) return false;
  physical_.erase(physical);
  return true;
}

void VmmLedger::array_made(const void* array, bool is_whole, CUcontext context) {
  const std::lock_guard lock(mutex_);
  // One that ended unseen had the handle: its memory is gone too
  while (auto before = arrays_.extract(array)) ended_.insert(std::move(before));
  arrays_.emplace(array, ArrayParts{context, is_whole, {}});
}

std::vector<std::uint64_t> VmmLedger::changed(const CUarrayMapInfo& change, CUcontext context) {
  std::vector<std::uint64_t> gone;
  const std::lock_guard lock(mutex_);
  const bool maps = change.memOperationType == CU_MEM_OPERATION_TYPE_MAP;
  const std::uint64_t key = maps ? key_of(change.memHandle.memHandle) : 0;
  auto array = arrays_.find(array_of(change));
  if (array == arrays_.end() && key == 0) return gone;
  if (array == arrays_.end()) array = arrays_.emplace(array_of(change), ArrayParts{context, false, {}});
  ArrayParts& parts = array->second;
  const ArrayPart part = parts.is_whole ? ArrayPart{} : ArrayPart::of(change);
  gone.reserve(parts.mapped.size());
  parts.mapped.reserve(parts.mapped.size() + 1);  // before anything is changed
  if (key != 0) ++physical_[key].mappings;        // first: it may be mapped where it was
  while (const std::uint64_t before = parts.take_covered(part))
    if (loses_mapping(before)) gone.push_back(before);
  if (key != 0 && !parts.add(part, key)) --physical_[key].mappings;
  return gone;
}

VmmLedger::Arrays::node_type VmmLedger::take_array(const void* array) noexcept {
  const std::lock_guard lock(mutex_);
  return arrays_.extract(array);
}

void VmmLedger::not_destroyed(Arrays::node_type parts) noexcept {
  const std::lock_guard lock(mutex_);
  if (!parts.empty()) arrays_.insert(std::move(parts));
}

std::uint64_t VmmLedger::next_gone(Arrays::node_type& parts) noexcept {
  const std::lock_guard lock(mutex_);
  while (!parts.empty() && !parts.mapped().mapped.empty()) {
    const std::uint64_t key = parts.mapped().mapped.back().key;
    parts.mapped().mapped.pop_back();
    if (loses_mapping(key)) return key;
  }
  return 0;
}

void VmmLedger::context_ended(CUcontext context) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto array = arrays_.begin(); array != arrays_.end();) {
    const auto next = std::next(array);
    if (array->second.context == context) ended_.insert(arrays_.extract(array));
    array = next;
  }
}

std::uint64_t VmmLedger::next_gone() noexcept {
  for (;;) {
    Arrays::node_type parts;
    {
      const std::lock_guard lock(mutex_);
      if (ended_.empty()) return 0;
      parts = ended_.extract(ended_.begin());
    }
    const std::uint64_t key = next_gone(parts);
    if (key == 0) continue;
    const std::lock_guard lock(mutex_);
    ended_.insert(std::move(parts));
    return key;
  }
}

}  // namespace cupool::shim
