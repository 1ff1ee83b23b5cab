// Copies and sets, each in its legacy and its per-thread default stream form.
#include "tests/sim/runtime/runtime_state.hpp"

using namespace cusim_runtime;

namespace {

constexpr auto kLegacy = DefaultStream::kLegacy;
constexpr auto kPerThread = DefaultStream::kPerThread;

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

cudaError_t copy(DefaultStream mode, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) {
    return record(ensure_context());
  }
  switch (kind) {
    case cudaMemcpyHostToDevice: return call_in_context(DRIVER_ROW(cuMemcpyHtoD, mode), address_of(to), from, bytes);
    case cudaMemcpyDeviceToHost: return call_in_context(DRIVER_ROW(cuMemcpyDtoH, mode), to, address_of(from), bytes);
    case cudaMemcpyDeviceToDevice: return call_in_context(DRIVER_ROW(cuMemcpyDtoD, mode), address_of(to), address_of(from), bytes);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault: return call_in_context(DRIVER_ROW(cuMemcpy, mode), address_of(to), address_of(from), bytes);
  }
  return record(cudaErrorInvalidMemcpyDirection);
}

cudaError_t copy_async(DefaultStream mode, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) {
    return record(ensure_context());
  }
  switch (kind) {
    case cudaMemcpyHostToDevice: return call_in_context(DRIVER_ROW(cuMemcpyHtoDAsync, mode), address_of(to), from, bytes, stream);
    case cudaMemcpyDeviceToHost: return call_in_context(DRIVER_ROW(cuMemcpyDtoHAsync, mode), to, address_of(from), bytes, stream);
    case cudaMemcpyDeviceToDevice: return call_in_context(DRIVER_ROW(cuMemcpyDtoDAsync, mode), address_of(to), address_of(from), bytes, stream);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault: return call_in_context(DRIVER_ROW(cuMemcpyAsync, mode), address_of(to), address_of(from), bytes, stream);
  }
  return record(cudaErrorInvalidMemcpyDirection);
}

struct Rows {
  void* to;
  size_t to_pitch;
  const void* from;
  size_t from_pitch;
  size_t width;
  size_t height;
};

CUDA_MEMCPY2D describe(const Rows& rows, cudaMemcpyKind kind) {
  const bool from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
  const bool to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost;
  const auto type_of = [kind](bool host) {
    return kind == cudaMemcpyDefault ? CU_MEMORYTYPE_UNIFIED : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  };
  CUDA_MEMCPY2D description{};
  description.srcMemoryType = type_of(from_host);
  description.srcHost = rows.from;
  description.srcDevice = address_of(rows.from);
  description.srcPitch = rows.from_pitch;
  description.dstMemoryType = type_of(to_host);
  description.dstHost = rows.to;
  description.dstDevice = address_of(rows.to);
  description.dstPitch = rows.to_pitch;
  description.WidthInBytes = rows.width;
  description.Height = rows.height;
  return description;
}

cudaError_t copy_rows(DefaultStream mode, const Rows& rows, cudaMemcpyKind kind) {
  const CUDA_MEMCPY2D description = describe(rows, kind);
  return call_in_context(DRIVER_ROW(cuMemcpy2DUnaligned, mode), &description);
}

cudaError_t copy_rows_async(DefaultStream mode, const Rows& rows, cudaMemcpyKind kind, cudaStream_t stream) {
  const CUDA_MEMCPY2D description = describe(rows, kind);
  return call_in_context(DRIVER_ROW(cuMemcpy2DAsync, mode), &description, stream);
}

cudaError_t set(DefaultStream mode, void* to, int value, size_t bytes) {
  return call_in_context(DRIVER_ROW(cuMemsetD8, mode), address_of(to), static_cast<unsigned char>(value), bytes);
}

cudaError_t set_async(DefaultStream mode, void* to, int value, size_t bytes, cudaStream_t stream) {
  return call_in_context(DRIVER_ROW(cuMemsetD8Async, mode), address_of(to), static_cast<unsigned char>(value), bytes, stream);
}

cudaError_t copy_peer(DefaultStream mode, void* to, int to_device, const void* from, int from_device, size_t bytes, bool async, cudaStream_t stream) {
  int here = 0;
  CUcontext contexts[2] = {};
  cudaError_t error = ensure_context();
  error = error == cudaSuccess ? selected_device(&here) : error;
  const int devices[2] = {to_device, from_device};
  for (int side = 0; side < 2 && error == cudaSuccess; ++side) {
    error = select_device(devices[side]);
    error = error == cudaSuccess ? static_cast<cudaError_t>(driver().legacy.cuCtxGetCurrent(&contexts[side])) : error;
  }
  error = error == cudaSuccess ? select_device(here) : error;
  if (error != cudaSuccess) {
    return record(error);
  }
  return async ? call_in_context(DRIVER_ROW(cuMemcpyPeerAsync, mode), address_of(to), contexts[0], address_of(from), contexts[1], bytes, stream)
               : call_in_context(DRIVER_ROW(cuMemcpyPeer, mode), address_of(to), contexts[0], address_of(from), contexts[1], bytes);
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) { return copy(kLegacy, to, from, bytes, kind); }
cudaError_t cudaMemcpy_ptds(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) { return copy(kPerThread, to, from, bytes, kind); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_async(kLegacy, to, from, bytes, kind, stream);
}
cudaError_t cudaMemcpyAsync_ptsz(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_async(kPerThread, to, from, bytes, kind, stream);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind) {
  return copy_rows(kLegacy, {to, to_pitch, from, from_pitch, width, height}, kind);
}
cudaError_t cudaMemcpy2D_ptds(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind) {
  return copy_rows(kPerThread, {to, to_pitch, from, from_pitch, width, height}, kind);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return copy_rows_async(kLegacy, {to, to_pitch, from, from_pitch, width, height}, kind, stream);
}
cudaError_t cudaMemcpy2DAsync_ptsz(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  return copy_rows_async(kPerThread, {to, to_pitch, from, from_pitch, width, height}, kind, stream);
}
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  return copy_peer(kLegacy, to, to_device, from, from_device, bytes, false, nullptr);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream) {
  return copy_peer(kLegacy, to, to_device, from, from_device, bytes, true, stream);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) { return set(kLegacy, to, value, bytes); }
cudaError_t cudaMemset_ptds(void* to, int value, size_t bytes) { return set(kPerThread, to, value, bytes); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) { return set_async(kLegacy, to, value, bytes, stream); }
cudaError_t cudaMemsetAsync_ptsz(void* to, int value, size_t bytes, cudaStream_t stream) { return set_async(kPerThread, to, value, bytes, stream); }
cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return call_in_context(DRIVER_ROW(cuMemsetD2D8, kLegacy), address_of(to), pitch, static_cast<unsigned char>(value), width, height);
}
cudaError_t cudaMemset2D_ptds(void* to, size_t pitch, int value, size_t width, size_t height) {
  return call_in_context(DRIVER_ROW(cuMemsetD2D8, kPerThread), address_of(to), pitch, static_cast<unsigned char>(value), width, height);
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return call_in_context(DRIVER_ROW(cuMemsetD2D8Async, kLegacy), address_of(to), pitch, static_cast<unsigned char>(value), width, height, stream);
}
cudaError_t cudaMemset2DAsync_ptsz(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return call_in_context(DRIVER_ROW(cuMemsetD2D8Async, kPerThread), address_of(to), pitch, static_cast<unsigned char>(value), width, height, stream);
}
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation location, unsigned flags, cudaStream_t stream) {
  CUmemLocation where{};
  where.type = static_cast<CUmemLocationType>(location.type);
  where.id = location.id;
  return call_in_context(DRIVER_ROW(cuMemPrefetchAsync, kLegacy), address_of(pointer), bytes, where, flags, stream);
}

}  // extern "C"
