// The table of exports, and the legacy IPC calls. Source: CUDA Driver API 13.0, "cuIpc*".
#include "tests/sim/ipc.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace cusim {

std::uint32_t ExportTable::add(std::uint64_t buffer_id) {
  if (fd_ < 0) fd_ = create_sparse_file("cusim-exports", std::uint64_t{1} << 32);
  const std::uint32_t slot = used_++;
  if (pwrite(fd_, &buffer_id, sizeof buffer_id, static_cast<off_t>(slot) * 8) != 8) std::abort();
  return slot;
}

void ExportTable::remove(std::uint32_t slot) {
  const std::uint64_t gone = 0;
  if (pwrite(fd_, &gone, sizeof gone, static_cast<off_t>(slot) * 8) != 8) std::abort();
}

void ExportTable::clear() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  used_ = 0;
}

}  // namespace cusim

namespace {

int open_of(std::int32_t pid, std::int32_t fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

bool is_live(const IpcHandle& handle) {
  const int table = open_of(handle.pid, handle.table_fd);
  if (table < 0) return false;
  std::uint64_t live = 0;
  const bool found = pread(table, &live, sizeof live, static_cast<off_t>(handle.slot) * 8) == 8;
  close(table);
  return found && live == handle.buffer_id;
}

CUresult export_memory(Call& c, CUipcMemHandle* out, CUdeviceptr address) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Allocation* memory = c.sim.find_memory(address);
  // Only cuMemAlloc memory has legacy handles: not VMM, not pools, not managed, not what was itself imported.
  if (memory == nullptr || memory->kind != MemoryKind::device) return CUDA_ERROR_INVALID_VALUE;
  if (memory->export_slot == 0) memory->export_slot = c.sim.exports.add(memory->buffer_id) + 1;
  Device& device = *c.sim.devices[static_cast<std::size_t>(memory->device)];
  IpcHandle handle{};
  handle.magic = kIpcMagic;
  handle.pid = getpid();
  handle.fd = device.memory.fd();
  handle.table_fd = c.sim.exports.fd();
  handle.slot = memory->export_slot - 1;
  handle.buffer_id = memory->buffer_id;
  handle.file_offset = memory->file_offset;
  handle.bytes = memory->bytes;
  handle.device = device.setting.uuid;
  std::memcpy(out, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

Allocation* find_open(Call& c, const IpcHandle& handle, const Context& context) {
  for (const auto& [base, memory] : c.sim.regions) {
    if (memory->kind == MemoryKind::imported && memory->exporter_pid == handle.pid && memory->exporter_buffer_id == handle.buffer_id &&
        memory->context == &context) {
      return memory.get();
    }
  }
  return nullptr;
}

CUresult import_memory(Call& c, CUdeviceptr* out, const CUipcMemHandle& raw, unsigned flags) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  IpcHandle handle{};
  std::memcpy(&handle, &raw, sizeof handle);
  if (handle.magic != kIpcMagic) return CUDA_ERROR_INVALID_VALUE;
  if (handle.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // one's own: an H100, driver 580
  CUSIM_TRY(c.sim.forbid_while_capturing());
  if (Allocation* open = find_open(c, handle, *context)) {
    ++open->open_count;
    *out = open->base;
    return CUDA_SUCCESS;
  }
  if (!is_live(handle)) return CUDA_ERROR_INVALID_VALUE;  // freed: an H100, driver 580; or the exporter is gone [?]
  const int fd = open_of(handle.pid, handle.fd);
  if (fd < 0) return CUDA_ERROR_MAP_FAILED;
  const std::uint64_t reserved = whole_granules(handle.bytes);
  const CUdeviceptr base = c.sim.address_space->take(reserved, kGranuleBytes, 0);
  if (base == 0) {
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto memory = std::make_unique<Allocation>();
  memory->base = base;
  memory->bytes = handle.bytes;
  memory->kind = MemoryKind::imported;
  memory->live = true;
  memory->device = context->device;
  for (std::size_t i = 0; i < c.sim.devices.size(); ++i) {
    if (std::memcmp(&c.sim.devices[i]->setting.uuid, &handle.device, sizeof handle.device) == 0) {
      memory->device = static_cast<int>(i);
    }
  }
  memory->fd = fd;
  memory->file_offset = handle.file_offset;
  memory->buffer_id = next_buffer_id();
  memory->reserved_bytes = reserved;
  memory->exporter_pid = handle.pid;
  memory->exporter_buffer_id = handle.buffer_id;
  memory->open_count = 1;
  c.sim.adopt(*memory, *context);
  c.sim.regions.emplace(base, std::move(memory));
  *out = base;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return call(Symbol::cuIpcGetMemHandle, [&](Call& c) { return export_memory(c, handle, address); });
}
CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return call(Symbol::cuIpcOpenMemHandle, [&](Call& c) { return import_memory(c, out, handle, flags); });
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return call(Symbol::cuIpcOpenMemHandle_v2, [&](Call& c) { return import_memory(c, out, handle, flags); });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return call(Symbol::cuIpcCloseMemHandle, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    const auto found = c.sim.regions.find(address);
    if (found == c.sim.regions.end() || found->second->kind != MemoryKind::imported) {
      c.sim.violate("cuIpcCloseMemHandle of an address that is not open (closed twice?)");
      return CUDA_ERROR_INVALID_VALUE;
    }
    CUSIM_TRY(c.sim.forbid_while_capturing());
    Context& owner = *found->second->context;
    c.sim.wait_for_context(owner, c.lock);            // also when it stays open: an H100, driver 580
    Allocation* memory = c.sim.find_memory(address);  // the lock may have been given up
    if (memory != nullptr && memory->kind == MemoryKind::imported && --memory->open_count == 0) c.sim.release(*memory);
    return owner.broken;
  });
}

}  // extern "C"
