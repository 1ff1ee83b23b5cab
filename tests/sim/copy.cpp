// The copy engine of the simulated driver.
#include "tests/sim/copy.hpp"

#include <algorithm>
#include <cstring>

namespace cusim {
namespace {

/// Bytes of one row of one side, wherever they are.
bool move_in(Simulator& sim, const CopySide& side, std::uint64_t address, std::byte* buffer, std::size_t bytes) {
  if (side.kind == CopySide::Kind::device) return sim.read(address, buffer, bytes);
  std::memcpy(buffer, reinterpret_cast<const void*>(address), bytes);
  return true;
}

bool move_out(Simulator& sim, const CopySide& side, std::uint64_t address, const std::byte* buffer, std::size_t bytes) {
  if (side.kind == CopySide::Kind::device) return sim.write(address, buffer, bytes);
  std::memcpy(reinterpret_cast<void*>(address), buffer, bytes);
  return true;
}

/// A unified address becomes host or device; an address of the device's range is never host memory.
CopySide resolve(Simulator& sim, CopySide side) {
  if (side.kind == CopySide::Kind::unified) {
    const bool is_known = sim.find_memory(side.address) != nullptr || is_device_address(side.address);
    side.kind = is_known ? CopySide::Kind::device : CopySide::Kind::host;
  }
  return side;
}

bool may_reach(Simulator& sim, const CopySide& side, const Context& stream_context, const Copy& copy, bool writes, Moment moment, std::string* why) {
  if (side.kind == CopySide::Kind::host) {
    if (!is_device_address(side.address)) return true;
    *why = "a device address was given as host memory";
    return false;
  }
  const Context& context = side.context != nullptr ? *side.context : stream_context;
  for (std::size_t row = 0; row < copy.rows(); ++row) {
    const CUdeviceptr address = side.row_address(row, copy.height);
    if (!sim.may_copy(context, address, copy.width_bytes, writes, moment, why)) return false;
  }
  return true;
}

bool may_reach_both(Simulator& sim, const Copy& copy, const Context& context, Moment moment, std::string* why) {
  return may_reach(sim, copy.to, context, copy, true, moment, why) && may_reach(sim, copy.from, context, copy, false, moment, why);
}

/// What happens at completion. `staged` holds the rows of unpinned host memory that were read at the call.
void run_copy(Simulator& sim, Context& context, const Copy& copy, const std::vector<std::byte>& staged) {
  if (context.broken != CUDA_SUCCESS) return;
  std::string why;
  if (!may_reach_both(sim, copy, context, Moment::completion, &why)) {
    sim.violate("a copy completed after its memory was gone: " + why);
    sim.break_device(context.device, CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  std::vector<std::byte> buffer(staged.empty() ? copy.width_bytes : 0);
  for (std::size_t row = 0; row < copy.rows(); ++row) {
    const std::byte* source = staged.empty() ? buffer.data() : staged.data() + row * copy.width_bytes;
    if (staged.empty() && !move_in(sim, copy.from, copy.from.row_address(row, copy.height), buffer.data(), copy.width_bytes)) break;
    if (!move_out(sim, copy.to, copy.to.row_address(row, copy.height), source, copy.width_bytes)) break;
  }
}

bool is_pinned(Simulator& sim, const CopySide& side) { return sim.find_memory(side.address) != nullptr; }

/// Pinned or not, and also when it was given as a unified address.
bool is_of_host(Simulator& sim, const CopySide& side) {
  if (side.kind == CopySide::Kind::host) return true;
  const Allocation* memory = sim.find_memory(side.address);
  return memory != nullptr && (memory->kind == MemoryKind::host || memory->kind == MemoryKind::registered);
}

/// SYNC_MEMOPS: what is synchronous on this memory "will always synchronize" (CUDA Driver API 13.0, cuPointerSetAttribute).
bool is_synchronous(Simulator& sim, CUdeviceptr address) {
  const Allocation* memory = sim.find_memory(address);
  return memory != nullptr && memory->sync_memops;
}

/// The synchronous forms are unsafe calls; on the legacy stream they would also wait for capturing streams.
CUresult admit_blocking(Call& c, const Stream& stream, Blocking blocking) {
  if (blocking == Blocking::no) return CUDA_SUCCESS;
  if (stream.legacy) CUSIM_TRY(c.sim.forbid_implicit(*stream.context));
  return c.sim.forbid_while_capturing();
}

CUresult side_2d(Call& c, CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x, std::size_t y, std::size_t pitch, CopySide* out) {
  switch (type) {
    case CU_MEMORYTYPE_HOST: *out = host_side(host); break;
    case CU_MEMORYTYPE_DEVICE: *out = device_side(device); break;
    case CU_MEMORYTYPE_UNIFIED: *out = unified_side(device); break;
    default: return c.refuse_unmodelled("a copy of an array");
  }
  out->address += y * pitch + x;
  out->pitch_bytes = pitch;
  return CUDA_SUCCESS;
}

}  // namespace

CopySide host_side(const void* address) { return {CopySide::Kind::host, as_number(address), 0, nullptr}; }
CopySide device_side(CUdeviceptr address) { return {CopySide::Kind::device, address, 0, nullptr}; }
CopySide unified_side(CUdeviceptr address) { return {CopySide::Kind::unified, address, 0, nullptr}; }

CUresult copy(Call& c, CUstream handle, Copy wanted, Blocking blocking) {
  Context* current = nullptr;
  CUSIM_TRY(c.current(&current));
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  CUSIM_TRY(admit_blocking(c, *stream, blocking));
  if (wanted.width_bytes == 0 || wanted.rows() == 0) return CUDA_SUCCESS;
  wanted.to = resolve(c.sim, wanted.to);
  wanted.from = resolve(c.sim, wanted.from);
  Context& context = *stream->context;
  std::string why;
  if (wanted.to.address == 0 || wanted.from.address == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!may_reach_both(c.sim, wanted, context, Moment::call, &why)) {
    c.sim.violate(c.name() + ": " + why);
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool from_host = wanted.from.kind == CopySide::Kind::host;
  const bool to_host = wanted.to.kind == CopySide::Kind::host;
  auto staged = std::make_shared<std::vector<std::byte>>();
  if (from_host && !is_pinned(c.sim, wanted.from)) {
    staged->resize(wanted.width_bytes * wanted.rows());
    for (std::size_t row = 0; row < wanted.rows(); ++row) {
      move_in(c.sim, wanted.from, wanted.from.row_address(row, wanted.height), staged->data() + row * wanted.width_bytes, wanted.width_bytes);
    }
  }
  Work work;
  work.duration_ns = c.sim.settings.copy_ns;
  work.node_type = CU_GRAPH_NODE_TYPE_MEMCPY;
  for (std::size_t row = 0; row < wanted.rows(); ++row) {
    if (!from_host) work.touch(wanted.from.row_address(row, wanted.height), wanted.width_bytes);
    if (!to_host) work.touch(wanted.to.row_address(row, wanted.height), wanted.width_bytes);
  }
  work.action = [&sim = c.sim, &context, wanted, staged] { run_copy(sim, context, wanted, *staged); };
  OperationPtr operation;
  CUSIM_TRY(c.sim.enqueue(*stream, std::move(work), c.lock, &operation));
  const bool has_host_side = is_of_host(c.sim, wanted.from) || is_of_host(c.sim, wanted.to);
  const bool is_synchronous_there = is_synchronous(c.sim, wanted.from.address) || is_synchronous(c.sim, wanted.to.address);
  const bool waits = blocking == Blocking::yes ? has_host_side || is_synchronous_there : to_host && !is_pinned(c.sim, wanted.to);
  if (!waits || operation == nullptr) return CUDA_SUCCESS;
  c.sim.timeline.wait(operation, c.lock);
  return context.broken;
}

CUresult copy_2d(Call& c, CUstream stream, const CUDA_MEMCPY2D_v2* p, Blocking blocking) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Copy wanted;
  CUSIM_TRY(side_2d(c, p->dstMemoryType, p->dstHost, p->dstDevice, p->dstXInBytes, p->dstY, p->dstPitch, &wanted.to));
  CUSIM_TRY(side_2d(c, p->srcMemoryType, p->srcHost, p->srcDevice, p->srcXInBytes, p->srcY, p->srcPitch, &wanted.from));
  wanted.width_bytes = p->WidthInBytes;
  wanted.height = p->Height;
  const auto overlaps = [&](const CopySide& side, std::size_t x) { return side.pitch_bytes != 0 && side.pitch_bytes < x + p->WidthInBytes; };
  if (overlaps(wanted.to, p->dstXInBytes) || overlaps(wanted.from, p->srcXInBytes)) return CUDA_ERROR_INVALID_VALUE;
  if (wanted.to.pitch_bytes == 0) wanted.to.pitch_bytes = p->WidthInBytes;
  if (wanted.from.pitch_bytes == 0) wanted.from.pitch_bytes = p->WidthInBytes;
  return copy(c, stream, wanted, blocking);
}

namespace {

/// What both structures of cuda.h have: `P` is CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER.
template <class P> CUresult sides_3d(Call& c, const P& p, Copy* wanted) {
  CUSIM_TRY(side_2d(c, p.dstMemoryType, p.dstHost, p.dstDevice, p.dstXInBytes, p.dstY, p.dstPitch, &wanted->to));
  CUSIM_TRY(side_2d(c, p.srcMemoryType, p.srcHost, p.srcDevice, p.srcXInBytes, p.srcY, p.srcPitch, &wanted->from));
  if (p.srcLOD != 0 || p.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  wanted->width_bytes = p.WidthInBytes;
  wanted->height = p.Height;
  wanted->depth = p.Depth;
  const auto place = [&](CopySide& side, std::size_t x, std::size_t y, std::size_t z, std::size_t pitch, std::size_t height) {
    if (pitch == 0) side.pitch_bytes = p.WidthInBytes;
    side.slice_rows = height != 0 ? height : p.Height;
    side.address += z * side.slice_rows * side.pitch_bytes;
    const bool fits = side.pitch_bytes >= x + p.WidthInBytes && side.slice_rows >= y + p.Height;
    return fits || (p.Depth <= 1 && p.Height <= 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  CUSIM_TRY(place(wanted->to, p.dstXInBytes, p.dstY, p.dstZ, p.dstPitch, p.dstHeight));
  return place(wanted->from, p.srcXInBytes, p.srcY, p.srcZ, p.srcPitch, p.srcHeight);
}

}  // namespace

CUresult copy_3d(Call& c, CUstream stream, const CUDA_MEMCPY3D_v2* p, Blocking blocking) {
  if (p == nullptr || p->reserved0 != nullptr || p->reserved1 != nullptr) return CUDA_ERROR_INVALID_VALUE;
  Copy wanted;
  CUSIM_TRY(sides_3d(c, *p, &wanted));
  return copy(c, stream, wanted, blocking);
}

/// [?] whether a side on the host needs a context: only arrays are said to ignore it, so it is refused here without one; and that a side on the
/// device has the rights of its own context.
CUresult copy_3d(Call& c, CUstream stream, const CUDA_MEMCPY3D_PEER* p, Blocking blocking) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Copy wanted;
  CUSIM_TRY(sides_3d(c, *p, &wanted));
  const auto with_rights = [&c](CopySide& side, CUcontext handle) {
    Context* context = c.sim.find_context(handle);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (side.kind != CopySide::Kind::host) side.context = context;
    return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  };
  CUSIM_TRY(with_rights(wanted.to, p->dstContext));
  CUSIM_TRY(with_rights(wanted.from, p->srcContext));
  return copy(c, stream, wanted, blocking);
}

namespace {

/// `bytes` bytes of the value's elements, one behind the other; doubled, not element by element: tests fill many megabytes.
std::vector<std::byte> pattern_of(const Fill& wanted, std::size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  std::size_t done = std::min(wanted.element_bytes, bytes);
  std::memcpy(pattern.data(), &wanted.value, done);
  while (done < bytes) {
    const std::size_t piece = std::min(done, bytes - done);
    std::memcpy(&pattern[done], pattern.data(), piece);
    done += piece;
  }
  return pattern;
}

}  // namespace

CUresult fill(Call& c, CUstream handle, const Fill& wanted, Blocking blocking) {
  Context* current = nullptr;
  CUSIM_TRY(c.current(&current));
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  CUSIM_TRY(admit_blocking(c, *stream, blocking));
  const std::size_t row_bytes = wanted.width * wanted.element_bytes;
  if (row_bytes == 0 || wanted.height == 0) return CUDA_SUCCESS;
  if (wanted.address % wanted.element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (wanted.height > 1 && wanted.pitch_bytes < row_bytes) return CUDA_ERROR_INVALID_VALUE;
  Context& context = *stream->context;
  const auto reachable = [&sim = c.sim, &context, wanted, row_bytes](Moment moment, std::string* why) {
    for (std::size_t row = 0; row < wanted.height; ++row) {
      if (!sim.may_copy(context, wanted.address + row * wanted.pitch_bytes, row_bytes, true, moment, why)) {
        return false;
      }
    }
    return true;
  };
  std::string why;
  if (!reachable(Moment::call, &why)) {
    c.sim.violate(c.name() + ": " + why);
    return CUDA_ERROR_INVALID_VALUE;
  }
  Work work;
  work.duration_ns = c.sim.settings.copy_ns;
  work.node_type = CU_GRAPH_NODE_TYPE_MEMSET;
  for (std::size_t row = 0; row < wanted.height; ++row) work.touch(wanted.address + row * wanted.pitch_bytes, row_bytes);
  work.action = [&sim = c.sim, &context, wanted, row_bytes, reachable] {
    if (context.broken != CUDA_SUCCESS) return;
    std::string reason;
    if (!reachable(Moment::completion, &reason)) {
      sim.violate("a memset completed after its memory was gone: " + reason);
      sim.break_device(context.device, CUDA_ERROR_ILLEGAL_ADDRESS);
      return;
    }
    const std::vector<std::byte> pattern = pattern_of(wanted, std::min<std::size_t>(row_bytes, std::size_t{1} << 20));
    for (std::size_t row = 0; row < wanted.height; ++row) {
      for (std::size_t done = 0; done < row_bytes; done += pattern.size()) {
        const std::size_t piece = std::min(pattern.size(), row_bytes - done);
        sim.write(wanted.address + row * wanted.pitch_bytes + done, pattern.data(), piece);
      }
    }
  };
  // Asynchronous to the host, also without Async in its name, unless the memory is the host's, or has SYNC_MEMOPS.
  OperationPtr operation;
  CUSIM_TRY(c.sim.enqueue(*stream, std::move(work), c.lock, &operation));
  if (blocking == Blocking::no || operation == nullptr || !is_synchronous(c.sim, wanted.address)) return CUDA_SUCCESS;
  c.sim.timeline.wait(operation, c.lock);
  return context.broken;
}

}  // namespace cusim
