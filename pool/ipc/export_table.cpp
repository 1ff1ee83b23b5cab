// ExportTable: see export_table.hpp. Indices are used again newest first, so that a registry grows no longer than the most blocks exported at once.
#include "pool/ipc/export_table.hpp"

#include <algorithm>

namespace cupool::ipc {

const Export* ExportTable::find(CUdeviceptr base, std::uint64_t buffer_id) const {
  const auto found = by_base_.find(base);
  return found != by_base_.end() && found->second.buffer_id == buffer_id ? &found->second : nullptr;
}

std::uint64_t ExportTable::buffer_at(CUdeviceptr base) const {
  const auto found = by_base_.find(base);
  return found != by_base_.end() ? found->second.buffer_id : 0;
}

const Export& ExportTable::add(CUdeviceptr base, std::uint64_t buffer_id, CUcontext context, const Nonce& nonce,
                               std::optional<std::uint32_t>& evicted) {
  free_.reserve(std::size_t{used_} + 1);  // so that giving an index back never needs memory
  const auto [place, is_new] = by_base_.try_emplace(base);
  evicted = is_new ? std::nullopt : std::optional<std::uint32_t>(place->second.index);
  const std::uint32_t index = next_index();
  if (free_.empty()) ++used_;
  else free_.pop_back();
  if (evicted) free_.push_back(*evicted);
  place->second = {buffer_id, context, nonce, index, serial_};
  return place->second;
}

std::optional<std::uint32_t> ExportTable::remove(CUdeviceptr base, std::uint64_t buffer_id) {
  const auto found = by_base_.find(base);
  if (found == by_base_.end() || found->second.buffer_id != buffer_id) return std::nullopt;
  const std::uint32_t index = found->second.index;
  by_base_.erase(found);
  free_.push_back(index);
  return index;
}

std::vector<std::uint32_t> ExportTable::remove_context(CUcontext context, std::uint64_t serial) {
  std::vector<std::uint32_t> gone;
  gone.reserve(by_base_.size());
  std::erase_if(by_base_, [&](const auto& entry) {
    const Export& exported = entry.second;
    if (exported.context != context || exported.serial > serial) return false;
    gone.push_back(exported.index);
    free_.push_back(exported.index);
    return true;
  });
  return gone;
}

std::string ExportTable::check() const {
  std::vector<bool> seen(used_, false);
  const auto claim = [&seen](std::uint32_t index) {
    if (index >= seen.size() || seen[index]) return false;
    seen[index] = true;
    return true;
  };
  for (const auto& [base, exported] : by_base_)
    if (!claim(exported.index)) return "two exports share an index, or one has none of ours";
  for (const std::uint32_t index : free_)
    if (!claim(index)) return "a free index is in use, free twice, or none of ours";
  return std::find(seen.begin(), seen.end(), false) == seen.end() ? "" : "an index is lost";
}

}  // namespace cupool::ipc
