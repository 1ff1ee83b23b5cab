// cuMemset*: one line per exported form; the work is in copy.cpp.
#include "tests/sim/copy.hpp"

using namespace cusim;

namespace {

CUresult set(Symbol symbol, CUstream stream, const Fill& wanted, Blocking blocking) {
  return call(symbol, [&](Call& c) { return fill(c, stream, wanted, blocking); });
}

}  // namespace

extern "C" {

CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t count) {
  return set(Symbol::cuMemsetD8_v2, nullptr, {at, 0, value, 1, count, 1}, Blocking::yes);
}
CUresult cuMemsetD8_v2_ptds(CUdeviceptr at, unsigned char value, size_t count) {
  return set(Symbol::cuMemsetD8_v2_ptds, CU_STREAM_PER_THREAD, {at, 0, value, 1, count, 1}, Blocking::yes);
}
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t count, CUstream stream) {
  return set(Symbol::cuMemsetD8Async, stream, {at, 0, value, 1, count, 1}, Blocking::no);
}
CUresult cuMemsetD8Async_ptsz(CUdeviceptr at, unsigned char value, size_t count, CUstream stream) {
  return set(Symbol::cuMemsetD8Async_ptsz, per_thread(stream), {at, 0, value, 1, count, 1}, Blocking::no);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height) {
  return set(Symbol::cuMemsetD2D8_v2, nullptr, {at, pitch, value, 1, width, height}, Blocking::yes);
}
CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height) {
  return set(Symbol::cuMemsetD2D8_v2_ptds, CU_STREAM_PER_THREAD, {at, pitch, value, 1, width, height}, Blocking::yes);
}
CUresult cuMemsetD2D8Async(CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) {
  return set(Symbol::cuMemsetD2D8Async, stream, {at, pitch, value, 1, width, height}, Blocking::no);
}
CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) {
  return set(Symbol::cuMemsetD2D8Async_ptsz, per_thread(stream), {at, pitch, value, 1, width, height}, Blocking::no);
}
CUresult cuMemsetD16_v2(CUdeviceptr at, unsigned short value, size_t count) {
  return set(Symbol::cuMemsetD16_v2, nullptr, {at, 0, value, 2, count, 1}, Blocking::yes);
}
CUresult cuMemsetD16_v2_ptds(CUdeviceptr at, unsigned short value, size_t count) {
  return set(Symbol::cuMemsetD16_v2_ptds, CU_STREAM_PER_THREAD, {at, 0, value, 2, count, 1}, Blocking::yes);
}
CUresult cuMemsetD16Async(CUdeviceptr at, unsigned short value, size_t count, CUstream stream) {
  return set(Symbol::cuMemsetD16Async, stream, {at, 0, value, 2, count, 1}, Blocking::no);
}
CUresult cuMemsetD16Async_ptsz(CUdeviceptr at, unsigned short value, size_t count, CUstream stream) {
  return set(Symbol::cuMemsetD16Async_ptsz, per_thread(stream), {at, 0, value, 2, count, 1}, Blocking::no);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr at, size_t pitch, unsigned short value, size_t width, size_t height) {
  return set(Symbol::cuMemsetD2D16_v2, nullptr, {at, pitch, value, 2, width, height}, Blocking::yes);
}
CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr at, size_t pitch, unsigned short value, size_t width, size_t height) {
  return set(Symbol::cuMemsetD2D16_v2_ptds, CU_STREAM_PER_THREAD, {at, pitch, value, 2, width, height}, Blocking::yes);
}
CUresult cuMemsetD2D16Async(CUdeviceptr at, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) {
  return set(Symbol::cuMemsetD2D16Async, stream, {at, pitch, value, 2, width, height}, Blocking::no);
}
CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr at, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) {
  return set(Symbol::cuMemsetD2D16Async_ptsz, per_thread(stream), {at, pitch, value, 2, width, height}, Blocking::no);
}
CUresult cuMemsetD32_v2(CUdeviceptr at, unsigned value, size_t count) {
  return set(Symbol::cuMemsetD32_v2, nullptr, {at, 0, value, 4, count, 1}, Blocking::yes);
}
CUresult cuMemsetD32_v2_ptds(CUdeviceptr at, unsigned value, size_t count) {
  return set(Symbol::cuMemsetD32_v2_ptds, CU_STREAM_PER_THREAD, {at, 0, value, 4, count, 1}, Blocking::yes);
}
CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream stream) {
  return set(Symbol::cuMemsetD32Async, stream, {at, 0, value, 4, count, 1}, Blocking::no);
}
CUresult cuMemsetD32Async_ptsz(CUdeviceptr at, unsigned value, size_t count, CUstream stream) {
  return set(Symbol::cuMemsetD32Async_ptsz, per_thread(stream), {at, 0, value, 4, count, 1}, Blocking::no);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr at, size_t pitch, unsigned value, size_t width, size_t height) {
  return set(Symbol::cuMemsetD2D32_v2, nullptr, {at, pitch, value, 4, width, height}, Blocking::yes);
}
CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr at, size_t pitch, unsigned value, size_t width, size_t height) {
  return set(Symbol::cuMemsetD2D32_v2_ptds, CU_STREAM_PER_THREAD, {at, pitch, value, 4, width, height}, Blocking::yes);
}
CUresult cuMemsetD2D32Async(CUdeviceptr at, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream) {
  return set(Symbol::cuMemsetD2D32Async, stream, {at, pitch, value, 4, width, height}, Blocking::no);
}
CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr at, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream) {
  return set(Symbol::cuMemsetD2D32Async_ptsz, per_thread(stream), {at, pitch, value, 4, width, height}, Blocking::no);
}

}  // extern "C"
