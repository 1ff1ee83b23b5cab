// cuMemcpy*: one line per exported form; the work is in copy.cpp.
#include "tests/sim/copy.hpp"

using namespace cusim;

namespace {

CUresult copy_bytes(Symbol symbol, CUstream stream, CopySide to, CopySide from, std::size_t bytes, Blocking blocking) {
  return call(symbol, [&](Call& c) { return copy(c, stream, {to, from, bytes, 1}, blocking); });
}

CUresult copy_rows(Symbol symbol, CUstream stream, const CUDA_MEMCPY2D_v2* parameters, Blocking blocking) {
  return call(symbol, [&](Call& c) { return copy_2d(c, stream, parameters, blocking); });
}

template <class Parameters> CUresult copy_slices(Symbol symbol, CUstream stream, const Parameters* parameters, Blocking blocking) {
  return call(symbol, [&](Call& c) { return copy_3d(c, stream, parameters, blocking); });
}

/// Each side has the rights of its own context: no peer access is needed.
CUresult copy_peer(Symbol symbol, CUstream stream, CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, std::size_t bytes,
                   Blocking blocking) {
  return call(symbol, [&](Call& c) -> CUresult {
    Copy wanted{device_side(to), device_side(from), bytes, 1};
    wanted.to.context = c.sim.find_context(to_context);
    wanted.from.context = c.sim.find_context(from_context);
    for (const CopySide* side : {&wanted.to, &wanted.from}) {
      if (side->context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
      if (!side->context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return copy(c, stream, wanted, blocking);
  });
}

}  // namespace

extern "C" {

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_bytes(Symbol::cuMemcpy, nullptr, unified_side(to), unified_side(from), bytes, Blocking::yes);
}
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_bytes(Symbol::cuMemcpy_ptds, CU_STREAM_PER_THREAD, unified_side(to), unified_side(from), bytes, Blocking::yes);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_bytes(Symbol::cuMemcpyAsync, stream, unified_side(to), unified_side(from), bytes, Blocking::no);
}
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_bytes(Symbol::cuMemcpyAsync_ptsz, per_thread(stream), unified_side(to), unified_side(from), bytes, Blocking::no);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_bytes(Symbol::cuMemcpyHtoD_v2, nullptr, device_side(to), host_side(from), bytes, Blocking::yes);
}
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_bytes(Symbol::cuMemcpyHtoD_v2_ptds, CU_STREAM_PER_THREAD, device_side(to), host_side(from), bytes, Blocking::yes);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_bytes(Symbol::cuMemcpyHtoDAsync_v2, stream, device_side(to), host_side(from), bytes, Blocking::no);
}
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_bytes(Symbol::cuMemcpyHtoDAsync_v2_ptsz, per_thread(stream), device_side(to), host_side(from), bytes, Blocking::no);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return copy_bytes(Symbol::cuMemcpyDtoH_v2, nullptr, host_side(to), device_side(from), bytes, Blocking::yes);
}
CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return copy_bytes(Symbol::cuMemcpyDtoH_v2_ptds, CU_STREAM_PER_THREAD, host_side(to), device_side(from), bytes, Blocking::yes);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_bytes(Symbol::cuMemcpyDtoHAsync_v2, stream, host_side(to), device_side(from), bytes, Blocking::no);
}
CUresult cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_bytes(Symbol::cuMemcpyDtoHAsync_v2_ptsz, per_thread(stream), host_side(to), device_side(from), bytes, Blocking::no);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_bytes(Symbol::cuMemcpyDtoD_v2, nullptr, device_side(to), device_side(from), bytes, Blocking::yes);
}
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_bytes(Symbol::cuMemcpyDtoD_v2_ptds, CU_STREAM_PER_THREAD, device_side(to), device_side(from), bytes, Blocking::yes);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_bytes(Symbol::cuMemcpyDtoDAsync_v2, stream, device_side(to), device_side(from), bytes, Blocking::no);
}
CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_bytes(Symbol::cuMemcpyDtoDAsync_v2_ptsz, per_thread(stream), device_side(to), device_side(from), bytes, Blocking::no);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D_v2* p) { return copy_rows(Symbol::cuMemcpy2D_v2, nullptr, p, Blocking::yes); }
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D_v2* p) { return copy_rows(Symbol::cuMemcpy2D_v2_ptds, CU_STREAM_PER_THREAD, p, Blocking::yes); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D_v2* p) { return copy_rows(Symbol::cuMemcpy2DUnaligned_v2, nullptr, p, Blocking::yes); }
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D_v2* p) {
  return copy_rows(Symbol::cuMemcpy2DUnaligned_v2_ptds, CU_STREAM_PER_THREAD, p, Blocking::yes);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D_v2* p, CUstream stream) { return copy_rows(Symbol::cuMemcpy2DAsync_v2, stream, p, Blocking::no); }
CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D_v2* p, CUstream stream) {
  return copy_rows(Symbol::cuMemcpy2DAsync_v2_ptsz, per_thread(stream), p, Blocking::no);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D_v2* p) { return copy_slices(Symbol::cuMemcpy3D_v2, nullptr, p, Blocking::yes); }
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D_v2* p) { return copy_slices(Symbol::cuMemcpy3D_v2_ptds, CU_STREAM_PER_THREAD, p, Blocking::yes); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D_v2* p, CUstream stream) { return copy_slices(Symbol::cuMemcpy3DAsync_v2, stream, p, Blocking::no); }
CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D_v2* p, CUstream stream) {
  return copy_slices(Symbol::cuMemcpy3DAsync_v2_ptsz, per_thread(stream), p, Blocking::no);
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* p) { return copy_slices(Symbol::cuMemcpy3DPeer, nullptr, p, Blocking::yes); }
CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* p) { return copy_slices(Symbol::cuMemcpy3DPeer_ptds, CU_STREAM_PER_THREAD, p, Blocking::yes); }
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* p, CUstream stream) {
  return copy_slices(Symbol::cuMemcpy3DPeerAsync, stream, p, Blocking::no);
}
CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER* p, CUstream stream) {
  return copy_slices(Symbol::cuMemcpy3DPeerAsync_ptsz, per_thread(stream), p, Blocking::no);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
  return copy_peer(Symbol::cuMemcpyPeer, nullptr, to, to_context, from, from_context, bytes, Blocking::yes);
}
CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
  return copy_peer(Symbol::cuMemcpyPeer_ptds, CU_STREAM_PER_THREAD, to, to_context, from, from_context, bytes, Blocking::yes);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream) {
  return copy_peer(Symbol::cuMemcpyPeerAsync, stream, to, to_context, from, from_context, bytes, Blocking::no);
}
CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream) {
  return copy_peer(Symbol::cuMemcpyPeerAsync_ptsz, per_thread(stream), to, to_context, from, from_context, bytes, Blocking::no);
}

}  // extern "C"
