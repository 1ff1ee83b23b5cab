// External memory: buffers in another API's memory, which comes as a file descriptor; cuMemFree gives a buffer back.
// Any file that is large enough stands for such memory. Its bytes are not the device's, so nothing is charged [?].
// Source: CUDA Driver API 13.0, "External Resource Interoperability". Mipmapped arrays and semaphores are loud.
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

CUresult import_memory(Call& c, CUexternalMemory* out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* wanted) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  if (out == nullptr || wanted == nullptr || wanted->size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (wanted->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return c.refuse_unmodelled("this type of external memory");
  if ((wanted->flags & ~unsigned{CUDA_EXTERNAL_MEMORY_DEDICATED}) != 0) return CUDA_ERROR_INVALID_VALUE;
  struct stat status {};
  if (fstat(wanted->handle.fd, &status) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (static_cast<unsigned long long>(status.st_size) < wanted->size) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(c.sim.forbid_while_capturing());
  const std::uint64_t handle = c.sim.new_handle();
  c.sim.external.emplace(handle, ExternalMemory{wanted->handle.fd, wanted->size});  // the descriptor is the driver's now
  *out = reinterpret_cast<CUexternalMemory>(handle);
  return CUDA_SUCCESS;
}

CUresult map_buffer(Call& c, CUdeviceptr* out, CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* wanted) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  const auto found = c.sim.external.find(as_number(handle));
  if (found == c.sim.external.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || wanted == nullptr || wanted->size == 0 || wanted->flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (wanted->offset > found->second.bytes || wanted->size > found->second.bytes - wanted->offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUSIM_TRY(c.sim.forbid_while_capturing());
  const std::uint64_t reserved = whole_granules(wanted->size);
  const CUdeviceptr base = c.sim.address_space->take(reserved, kGranuleBytes, 0);
  if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = std::make_unique<Allocation>();
  memory->base = base;
  memory->bytes = wanted->size;
  memory->kind = MemoryKind::external;
  memory->live = true;
  memory->device = context->device;
  memory->fd = dup(found->second.fd);
  memory->file_offset = wanted->offset;
  memory->buffer_id = next_buffer_id();
  memory->reserved_bytes = reserved;
  c.sim.adopt(*memory, *context);
  c.sim.regions.emplace(base, std::move(memory));
  *out = base;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuImportExternalMemory(CUexternalMemory* out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* wanted) {
  return call(Symbol::cuImportExternalMemory, [&](Call& c) { return import_memory(c, out, wanted); });
}
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr* out, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* wanted) {
  return call(Symbol::cuExternalMemoryGetMappedBuffer, [&](Call& c) { return map_buffer(c, out, memory, wanted); });
}
/// Buffers that are still mapped must be freed all the same.
CUresult cuDestroyExternalMemory(CUexternalMemory handle) {
  return call(Symbol::cuDestroyExternalMemory, [&](Call& c) -> CUresult {
    const auto found = c.sim.external.find(as_number(handle));
    if (found == c.sim.external.end()) {
      c.sim.violate("cuDestroyExternalMemory of memory that is destroyed or unknown");
      return CUDA_ERROR_INVALID_HANDLE;
    }
    close(found->second.fd);
    c.sim.external.erase(found);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
