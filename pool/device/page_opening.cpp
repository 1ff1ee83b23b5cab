// PageHeap: maps handles one behind the other, and opens them with one call. See page_heap.hpp.
//
// A driver may refuse that although a device's attributes promised it: under WSL2 they say that mapped memory supports GPUDirect RDMA; handles that
// ask for it are created and mapped, and cuMemSetAccess then answers CUDA_ERROR_UNKNOWN (pytorch issue 192330). So until anything was opened, handles
// are tried with fewer properties. Where the driver opens none at all, or reserves no addresses, the context is served by the driver's own calls, and
// later contexts from segments.
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"

namespace cupool::device {

/// Maps all handles one behind the other, then opens them with one call. On any error nothing stays mapped, if the driver agrees.
void PageHeap::map_all(Supply& supply) {
  const std::uint64_t address = supply.fresh->address;
  CUresult code = CUDA_SUCCESS;
  for (const Handle& handle : supply.handles) {
    if (supply.mapped_bytes >= supply.wanted_bytes || supply.mapped_bytes + handle.bytes > supply.space_bytes()) break;
    code = memory_->map(address + supply.mapped_bytes, handle.bytes, handle.id);
    if (code != CUDA_SUCCESS) break;
    supply.mapped_bytes += handle.bytes;
    ++supply.mapped_handles;
  }
  if (supply.is_enough(supply.mapped_bytes) && (code == CUDA_SUCCESS || code == CUDA_ERROR_OUT_OF_MEMORY)) {
    code = memory_->set_access(address, supply.mapped_bytes);
    supply.is_accessible = code == CUDA_SUCCESS;
  }
  if (supply.is_accessible) return;
  if (supply.error == CUDA_SUCCESS && code != CUDA_ERROR_OUT_OF_MEMORY) supply.error = code;
  if (supply.mapped_bytes == 0) return;
  if (!insist([&] { return memory_->unmap(address, supply.mapped_bytes); })) {
    supply.is_stuck = true;
    return;
  }
  supply.mapped_handles = 0;
  supply.mapped_bytes = 0;
}

void PageHeap::map_or_ask_less(DeviceState& device, Supply& supply) {
  if (supply.is_enough(supply.handle_bytes)) map_all(supply);
  const auto can_drop = [&] { return is_refused_as_ever(supply) && !supply.is_stuck && supply.created_handles != 0; };
  while (can_drop() && memory_->ask_less(supply.error)) {
    drop_created(device, supply);
    supply.error = CUDA_SUCCESS;
    create_missing(device, supply);
    if (supply.is_enough(supply.handle_bytes)) map_all(supply);
  }
  if (can_drop()) drop_created(device, supply);  // they would stand in for handles with fewer properties
}

/// Did the driver refuse to open the handles for a reason that the program's own call would not have met, on a device where nothing was ever opened?
bool PageHeap::is_refused_as_ever(const Supply& supply) const {
  return !supply.is_accessible && supply.error != CUDA_SUCCESS && !is_met_natively(supply.error) && !memory_->has_opened();
}

/// Drops the handles that were created last. One that the driver does not take back stays with it, and counts as held.
void PageHeap::drop_created(DeviceState& device, Supply& supply) {
  for (; supply.created_handles != 0; --supply.created_handles) {
    const Handle handle = supply.handles.back();
    supply.handles.pop_back();
    if (insist([&] { return memory_->release(handle.id); })) device.limit.refund(handle.bytes);
    supply.handle_bytes -= handle.bytes;
    supply.created_bytes -= handle.bytes;
    supply.zone_bytes -= handle.bytes;
    supply.room_bytes += handle.bytes;
  }
}

void PageHeap::note_opening(DeviceState& device, const Supply& supply) {
  refused_openings_ = is_refused_as_ever(supply) ? refused_openings_ + 1 : 0;
  is_out_of_mappings_ = !supply.is_accessible && supply.is_enough(supply.handle_bytes);
  if (never_opens()) log_never_opens(device, "the driver does not open mapped memory", supply.error);
}

/// The driver refuses even the addresses that a small block wants, and has never given any. A large block may simply want too many.
void PageHeap::note_no_addresses(DeviceState& device, const Addresses& refused) {
  if (!refused.is_refused || is_met_natively(refused.code) || refused.bytes > 2 * kLargestHandle_bytes || memory_->has_opened()) return;
  ++refused_openings_;
  if (never_opens()) log_never_opens(device, "the driver reserves no addresses", refused.code);
}

void PageHeap::log_never_opens(DeviceState& device, const char* what, CUresult code) {
  device.opens_no_pages = true;
  device.log(config::LogLevel::warn, [&] {
    return std::string(what) + " (code " + std::to_string(code) +
           "): what this context asks for is the driver's own, the next ones are served from segments";
  });
}

}  // namespace cupool::device
