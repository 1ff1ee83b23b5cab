// Physical memory in sparse arrays: mapped and unmapped in stream order, held like any mapping. A part is unmapped by the very bounds by which it was
// mapped, or replaced; other overlaps are not modelled, nor are the texels. Source: CUDA Driver API 13.0, cuMemMapArrayAsync. [?] captures: refused.
#include <bit>

#include "tests/sim/vmm_calls.hpp"

using namespace cusim;

namespace {

constexpr unsigned kDeferred = CUDA_ARRAY3D_DEFERRED_MAPPING;
constexpr std::uint64_t kTileBytes = 64 << 10;

std::uint64_t array_named(const CUarrayMapInfo& change) {
  return change.resourceType == CU_RESOURCE_TYPE_ARRAY ? as_number(change.resource.array) : as_number(change.resource.mipmap);
}

/// All of an array that is mapped as a whole, whatever the call says.
ArrayPart part_of(const CUarrayMapInfo& change, const Array& array) {
  if ((array.descriptor.Flags & kDeferred) != 0) return {};
  const auto kind = static_cast<std::uint64_t>(change.subresourceType);
  const auto& tail = change.subresource.miptail;
  if (change.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) return {kind, 0, tail.layer, tail.offset, 0, 0, tail.size, 0, 0};
  const auto& box = change.subresource.sparseLevel;
  return {kind, box.level, box.layer, box.offsetX, box.offsetY, box.offsetZ, box.extentWidth, box.extentHeight, box.extentDepth};
}

CUresult find_array(Call& c, const CUarrayMapInfo& change, Array** out) {
  const bool is_mipmapped = change.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  if (!is_mipmapped && change.resourceType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  const auto found = c.sim.arrays.find(array_named(change));
  if (found == c.sim.arrays.end() || (found->second->levels > 1) != is_mipmapped) {
    c.sim.violate(c.name() + " of an array that is destroyed or unknown");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *out = found->second.get();
  return ((*out)->descriptor.Flags & (CUDA_ARRAY3D_SPARSE | kDeferred)) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// Of a change that maps: its memory, which was made for it.
CUresult find_memory(Call& c, const CUarrayMapInfo& change, int device, PhysicalMemory** out) {
  if (change.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) return change.memHandle.memHandle == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (change.memOperationType != CU_MEM_OPERATION_TYPE_MAP || change.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC) return CUDA_ERROR_INVALID_VALUE;
  PhysicalMemory* memory = find_physical(c, change.memHandle.memHandle);
  const bool fits = memory != nullptr && (memory->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) != 0 && memory->device == device &&
                    change.offset % kTileBytes == 0 && change.offset < memory->bytes;
  *out = memory;
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check(Call& c, const CUarrayMapInfo& change, int device, Array** array, PhysicalMemory** memory) {
  CUSIM_TRY(find_array(c, change, array));
  if (change.flags != 0 || change.reserved[0] != 0 || change.reserved[1] != 0) return CUDA_ERROR_INVALID_VALUE;
  if (device >= 32 || change.deviceBitMask != 1U << device) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(find_memory(c, change, device, memory));
  const ArrayPart part = part_of(change, **array);
  return part == ArrayPart{} || (part[6] != 0 && (part[0] != 0 || (part[7] != 0 && part[8] != 0))) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// In stream order. `memory` null: unmaps. Its mapping counts since the call.
void change_part(Simulator& sim, std::uint64_t handle, const ArrayPart& part, PhysicalMemory* memory) {
  Array& array = *sim.arrays.at(handle);
  const auto found = array.parts.find(part);
  PhysicalMemory* const before = found != array.parts.end() ? found->second : nullptr;
  if (before == nullptr && memory == nullptr) sim.violate("cuMemMapArrayAsync unmaps a part that is not mapped by these bounds");
  if (memory != nullptr) array.parts[part] = memory;
  else array.parts.erase(part);
  if (before == nullptr) return;
  --before->mappings;
  sim.drop_if_unused(*before);
}

CUresult map_all(Call& c, const CUarrayMapInfo* changes, unsigned count, CUstream handle) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  if (changes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Array* array = nullptr;
  PhysicalMemory* memory = nullptr;
  for (unsigned i = 0; i < count; ++i) CUSIM_TRY(check(c, changes[i], stream->context->device, &array, &memory));
  for (unsigned i = 0; i < count; ++i) {
    memory = nullptr;
    CUSIM_TRY(check(c, changes[i], stream->context->device, &array, &memory));
    if (memory != nullptr) ++memory->mappings;
    Work work;
    work.action = [&sim = c.sim, named = array_named(changes[i]), part = part_of(changes[i], *array), memory] {
      change_part(sim, named, part, memory);
    };
    CUSIM_TRY(c.sim.enqueue(*stream, std::move(work), c.lock));
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemMapArrayAsync(CUarrayMapInfo* changes, unsigned count, CUstream stream) {
  return call(Symbol::cuMemMapArrayAsync, [&](Call& c) { return map_all(c, changes, count, stream); });
}
CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* changes, unsigned count, CUstream stream) {
  return call(Symbol::cuMemMapArrayAsync_ptsz, [&](Call& c) { return map_all(c, changes, count, per_thread(stream)); });
}

}  // extern "C"
