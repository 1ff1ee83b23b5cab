// Memory shared between processes. CUDA Driver API 13.0 §6.14 (cuIpc*).
#include <atomic>
#include <new>
#include <string>

#include "pool/ipc/block_handle.hpp"
#include "shim/front_door.hpp"
#include "shim/log.hpp"

namespace cupool::shim::front_door {
namespace {

bool is_opened(const Process& own, CUdeviceptr address) { return own.shared.find_opened(address, nullptr) != Ownership::unknown; }

/// Memory on mapped pages has no legacy handle, and the block cannot be moved. If the driver has another reason to refuse the call, that one is
/// given.
CUresult refuse_paged(const Real<CUresult(CUipcMemHandle*, CUdeviceptr)>& real, CUipcMemHandle* out, CUdeviceptr address) {
  static std::atomic<bool> has_warned{false};
  CUipcMemHandle unused{};
  const CUresult result = real(out != nullptr ? &unused : nullptr, address);
  if (out == nullptr || (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE)) return result;
  process().pools.share_blocks();
  try {
    if (!has_warned.exchange(true))
      log::warn(std::string(real.symbol()) +
                " is refused for memory on mapped pages: with CUPOOL_BACKING=segments it can be shared with other processes");
  } catch (const std::bad_alloc&) {  // no memory for a line: it is lost
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

Ownership find_block(CUdeviceptr address, BlockView* block) {
  Process& own = process();
  const Ownership ownership = own.pools.find(address, block);
  return ownership != Ownership::unknown ? ownership : own.shared.find_opened(address, block);
}

CUdeviceptr unless_opened(CUdeviceptr address) { return is_opened(process(), address) ? kNowhere : address; }

CUresult export_memory(const Real<CUresult(CUipcMemHandle*, CUdeviceptr)>& real, CUipcMemHandle* out, CUdeviceptr address) {
  Process& own = process();
  BlockView block;
  switch (own.pools.find(address, &block)) {
    case Ownership::live:
      if (block.mempool != 0) return real(out, kNowhere);  // stream-ordered memory has no legacy handles
      if (block.is_paged) return refuse_paged(real, out, address);
      if (block.is_native) return real(out, address);
      try {
        return own.shared.export_block(real, out, block);
      } catch (const std::bad_alloc&) {  // the barrier would hand out the driver's handle, which is the region's
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
    case Ownership::vacant: return real(out, kNowhere);
    case Ownership::unknown: break;
  }
  return real(out, unless_opened(address));  // natively memory of another process cannot be exported again (H100 and H200, driver 580)
}

CUresult open_memory(const Real<CUresult(CUdeviceptr*, CUipcMemHandle, unsigned)>& real, CUdeviceptr* out, CUipcMemHandle raw, unsigned flags) {
  Process& own = process();
  ipc::BlockHandle handle;
  switch (ipc::decode(raw, handle)) {
    case ipc::HandleKind::ours: try { return own.shared.open(real, out, handle, flags, own.contexts.owner(current_context(own)));
      } catch (const std::bad_alloc&) {  // the barrier would ask the driver about our handle, which it calls invalid
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
    case ipc::HandleKind::damaged: return real(out, CUipcMemHandle{}, flags);
    case ipc::HandleKind::foreign: break;
  }
  return real(out, raw, flags);
}

CUresult close_memory(const Real<CUresult(CUdeviceptr)>& real, CUdeviceptr address) {
  const Uncancelled uncancelled;
  Process& own = process();
  if (own.pools.owns(address)) return real(kNowhere);
  if (!is_opened(own, address)) return real(address);
  return current_context(own) != nullptr ? own.shared.close(real, address) : real(kNowhere);
}

CUresult set_opened_attribute(const Real<CUresult(const void*, CUpointer_attribute, CUdeviceptr)>& real, const void* value,
                              CUpointer_attribute attribute, CUdeviceptr address) {
  Process& own = process();
  const Ownership ownership = own.shared.find_opened(address, nullptr);
  if (ownership != Ownership::live) return real(value, attribute, ownership == Ownership::vacant ? kNowhere : address);
  if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || value == nullptr) return real(value, attribute, address);
  const unsigned on = *static_cast<const unsigned*>(value) != 0 ? 1 : 0;
  const unsigned region_on = own.shared.set_sync_memops(address, on != 0) ? on : 1;  // it stays on while another block of the region needs it
  return real(&region_on, attribute, address);
}

}  // namespace cupool::shim::front_door
