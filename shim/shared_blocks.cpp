// See shared_blocks.hpp. In open and close the order matters: a region that another thread can find in the table is still open in the driver.
#include "shim/shared_blocks.hpp"

#include <sys/random.h>

#include <new>
#include <string>

#include "pool/core/clock.hpp"
#include "shim/front_door.hpp"
#include "shim/log.hpp"

namespace cupool::shim {
namespace {

using Lock = std::lock_guard<std::mutex>;

/// Is it a refusal because a stream captures, after which nothing has changed? After any other error of a close the memory is closed.
bool is_refusal(CUresult code) { return code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && code <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; }

ipc::Nonce make_nonce() {
  ipc::Nonce nonce{};
  if (getrandom(nonce.data(), sizeof nonce, GRND_NONBLOCK) == static_cast<ssize_t>(sizeof nonce)) return nonce;
  return {ticks(), unix_now_ns()};  // good enough: a nonce is no secret, it only tells exports apart
}

}  // namespace

// --- exports

CUresult SharedBlocks::export_block(const ExportCall& real, CUipcMemHandle* out, const BlockView& block) {
  ipc::BlockPlace place;
  const CUresult result = real(out != nullptr ? &place.region : nullptr, block.region_base);
  if (result != CUDA_SUCCESS || out == nullptr) return result;
  place.nonce = make_nonce();
  place.region_bytes = block.region_bytes;
  place.offset = block.base - block.region_base;
  place.bytes = block.bytes;
  const CUresult booked = book_export(out, block, place);
  if (booked != CUDA_SUCCESS) {
    if (!has_warned_.exchange(true))
      log::warn(std::string(real.symbol()) + " fails: the list of exported blocks can be written neither in /dev/shm nor in /tmp");
    return booked;
  }
  BlockView now;  // if another thread has freed the block before it was booked, nobody else retires the export
  if (pools_.find(block.base, &now) != Ownership::live || now.buffer_id != block.buffer_id) retire(block.base, block.buffer_id);
  return CUDA_SUCCESS;
}

CUresult SharedBlocks::book_export(CUipcMemHandle* out, const BlockView& block, const ipc::BlockPlace& place) {
  const Lock lock(mutex_);
  try {
    const ipc::Export* known = exports_.find(block.base, block.buffer_id);
    if (known == nullptr) {
      if (!registry_.reserve(exports_.next_index())) return CUDA_ERROR_OUT_OF_MEMORY;
      std::optional<std::uint32_t> evicted;
      known = &exports_.add(block.base, block.buffer_id, block.context, place.nonce, evicted);
      if (evicted) ipc::retire_entry(registry_.entry(*evicted));
      ipc::write_entry(registry_.entry(known->index), place);
      exports_count_.store(exports_.size(), std::memory_order_relaxed);
    }
    *out = ipc::encode({registry_.owner(), known->nonce, known->index});
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

std::uint64_t SharedBlocks::find_exported(CUdeviceptr base) const {
  const Lock lock(mutex_);
  return exports_.buffer_at(base);
}

void SharedBlocks::retire(CUdeviceptr base, std::uint64_t buffer_id) {
  const Lock lock(mutex_);
  if (const auto index = exports_.remove(base, buffer_id)) ipc::retire_entry(registry_.entry(*index));
  exports_count_.store(exports_.size(), std::memory_order_relaxed);
}

// --- openings

bool SharedBlocks::look_up(const ipc::BlockHandle& handle, ipc::BlockPlace& place) {
  if (handle.exporter != registry_.owner()) return registry_.read(handle, place);
  const Lock lock(mutex_);
  const ipc::RegistryEntry* entry = registry_.entry(handle.index);
  return entry != nullptr && ipc::judge(*entry, handle.nonce, place);
}

/// Opens one more block of a region that is already open; returns its address, 0: the region is not open.
CUdeviceptr SharedBlocks::open_again(const ipc::BlockPlace& place, CUcontext context) {
  const Lock lock(mutex_);
  const ipc::OpenedRegion* region = imports_.find_region(place.region, context);
  return region != nullptr ? imports_.open(region->base, place) : 0;
}

/// Books what the driver has just opened at `region`, and the block in it. On an error the region is closed again, unless other blocks use it.
CUresult SharedBlocks::book_open(CUdeviceptr* out, CUdeviceptr region, const ipc::BlockPlace& place, CUcontext context) {
  ipc::OpenedRegion opened{region, place.region_bytes, context, place.region, 1, 0, 0};
  const DriverApi& api = api_;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const bool is_measured =
      api.cuMemGetAddressRange_v2 != nullptr && api.cuMemGetAddressRange_v2(&base, &bytes, region) == CUDA_SUCCESS && base == region;
  if (is_measured) opened.bytes = bytes;  // what the driver says is true; the registry's figure is the exporter's word
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  std::optional<ipc::OpenedRegion> idle = opened;
  try {
    const Lock lock(mutex_);
    imports_.add_driver_open(opened, is_measured);
    idle.reset();
    opened_count_.store(imports_.region_count(), std::memory_order_release);
    if (CUdeviceptr address = imports_.open(region, place)) {
      *out = address;
      return CUDA_SUCCESS;
    }
  } catch (const std::bad_alloc&) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!idle) {
    const Lock lock(mutex_);
    idle = imports_.take_idle(region);
    opened_count_.store(imports_.region_count(), std::memory_order_release);
  }
  if (idle && api.cuIpcCloseMemHandle != nullptr)
    for (std::uint32_t i = 0; i < idle->driver_opens; ++i) api.cuIpcCloseMemHandle(idle->base);
  return result;
}

CUresult SharedBlocks::open(const OpenCall& real, CUdeviceptr* out, const ipc::BlockHandle& handle, unsigned flags, CUcontext context) {
  ipc::BlockPlace place;
  if (!look_up(handle, place)) return real(out, CUipcMemHandle{}, flags);
  const bool may_share = out != nullptr && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS && context != nullptr;
  if (may_share) {
    if (CUdeviceptr address = open_again(place, context)) {
      *out = address;
      return CUDA_SUCCESS;
    }
  }
  CUdeviceptr region = 0;
  const CUresult result = real(out != nullptr ? &region : nullptr, place.region, flags);
  if (result != CUDA_SUCCESS) {
    // Some drivers open memory only once, and another thread may have been faster.
    const CUdeviceptr address = may_share ? open_again(place, context) : 0;
    if (address == 0) return result;
    *out = address;
    return CUDA_SUCCESS;
  }
  const CUresult booked = book_open(out, region, place, context);
  return booked == CUDA_ERROR_INVALID_VALUE ? real(out, CUipcMemHandle{}, flags) : booked;
}

Ownership SharedBlocks::look_up_opened(CUdeviceptr address, BlockView* view) const {
  const Lock lock(mutex_);
  const ipc::OpenedRegion* region = imports_.find_region(address);
  if (region == nullptr) return Ownership::unknown;
  const ipc::OpenedBlock* block = imports_.find(address);
  if (block == nullptr) return Ownership::vacant;
  if (view != nullptr)
    *view = {block->base, block->bytes, region->context, 0, 0, block->buffer_id, region->base, region->bytes, block->sync_memops, false};
  return Ownership::live;
}

bool SharedBlocks::set_sync_memops(CUdeviceptr address, bool on) {
  const Lock lock(mutex_);
  return imports_.set_sync_memops(address, on);
}

/// Closes in the driver what the table has given up; puts it back when the driver refuses.
CUresult SharedBlocks::close_region(const CloseCall& real, const ipc::OpenedRegion& region, const ipc::OpenedBlock& block) {
  CUresult result = CUDA_SUCCESS;
  for (std::uint32_t left = region.driver_opens; left > 0; --left) {
    result = real(region.base);
    if (!is_refusal(result)) continue;
    const Lock lock(mutex_);
    ipc::OpenedRegion kept = region;
    kept.driver_opens = left;
    imports_.add_driver_open(kept);
    imports_.open(region.base, {block.nonce, region.handle, region.bytes, block.base - region.base, block.bytes});
    opened_count_.store(imports_.region_count(), std::memory_order_release);
    return result;
  }
  return result;
}

/// Closes the block at `address` in the table, if it is open there and its close needs no wait, or the wait was made for this very opening, `waited`.
/// False: closing.context is the context to wait for, or nullptr where nothing is open.
bool SharedBlocks::close_known(CUdeviceptr address, const ipc::OpenedBlock& waited, Closing& closing) {
  const Lock lock(mutex_);
  const ipc::ImportTable::Close kind = imports_.peek_close(address, closing.block);
  closing.context = nullptr;
  if (kind == ipc::ImportTable::Close::unknown) return false;
  const bool is_waited_for = waited.buffer_id == closing.block.buffer_id && waited.opens == closing.block.opens;
  if (kind != ipc::ImportTable::Close::last_of_region && !is_waited_for) {
    closing.context = imports_.find_region(address)->context;
    return false;
  }
  closing.region = imports_.close(address);
  opened_count_.store(imports_.region_count(), std::memory_order_release);
  return true;
}

CUresult SharedBlocks::close(const CloseCall& real, CUdeviceptr address) {
  Closing closing;
  ipc::OpenedBlock waited;
  CUresult result = CUDA_SUCCESS;
  while (!close_known(address, waited, closing)) {
    if (closing.context == nullptr) return real(front_door::kNowhere);
    // The region stays open, so that the driver does not close it. Its close would wait for the context's work, even if only one opening of several
    // is closed (H100, driver 580): so that wait is made here, because the exporter may use the bytes for something else once it hears of the close.
    result = pools_.wait_for_context(closing.context);
    if (is_refusal(result) || result == CUDA_ERROR_OUT_OF_MEMORY) return result;
    waited = closing.block;
  }
  return closing.region ? close_region(real, *closing.region, closing.block) : result;
}

// --- ends

SharedBlocks::Moment SharedBlocks::mark() {
  const Lock lock(mutex_);
  return {exports_.mark(), imports_.mark()};
}

void SharedBlocks::context_ended(CUcontext context, Moment before) {
  const Lock lock(mutex_);
  for (const std::uint32_t index : exports_.remove_context(context, before.exports)) ipc::retire_entry(registry_.entry(index));
  imports_.remove_context(context, before.imports);
  exports_count_.store(exports_.size(), std::memory_order_relaxed);
  opened_count_.store(imports_.region_count(), std::memory_order_release);
}

}  // namespace cupool::shim
