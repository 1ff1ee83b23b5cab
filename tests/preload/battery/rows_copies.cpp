// Copies. What they move is checked by the victims; here: codes, waits and captures, for every form, and every kind of side.
#include <cstring>

#include "rows.hpp"

namespace battery {
namespace {

constexpr std::size_t kBytes = 1000;

struct Pair {
  const char* name;
  CUdeviceptr (*to)(const World&);
  CUdeviceptr (*from)(const World&);
};

CUdeviceptr host_of(const World& w) { return reinterpret_cast<CUdeviceptr>(w.host); }

const std::vector<Pair>& device_pairs() {
  static const std::vector<Pair> pairs = {
      {"small from block", [](const World& w) { return w.small; }, [](const World& w) { return w.block; }},
      {"block from interior", [](const World& w) { return w.block; }, [](const World& w) { return w.interior(); }},
      {"block from other device", [](const World& w) { return w.block; }, [](const World& w) { return w.block_elsewhere; }},
      {"other device from other context", [](const World& w) { return w.block_elsewhere; }, [](const World& w) { return w.block_of_other; }},
      {"block from managed", [](const World& w) { return w.block; }, [](const World& w) { return w.managed; }},
      {"null from block", [](const World&) -> CUdeviceptr { return 0; }, [](const World& w) { return w.block; }}};
  return pairs;
}

const std::vector<AddressKind>& sides() {
  static const std::vector<AddressKind> kinds = {{"block", [](const World& w) { return w.block; }},
                                                 {"block of other device", [](const World& w) { return w.block_elsewhere; }},
                                                 {"null", [](const World&) -> CUdeviceptr { return 0; }}};
  return kinds;
}

/// One form between two device addresses: `call(to, from, bytes, world)`.
template <class Call> void pair_cases(Cases& cases, Call call) {
  for (const Pair& pair : device_pairs()) {
    cases.add(pair.name, [&pair, call](World& w, Line& line) { line.code(call(w, pair.to(w), pair.from(w), kBytes)); });
  }
  cases.add("no bytes", [call](World& w, Line& line) { line.code(call(w, w.block, w.block_elsewhere, 0)); });
}

template <class Call> void unified_cases(Cases& cases, Call call) {
  pair_cases(cases, call);
  cases.add("host from other device", [call](World& w, Line& line) { line.code(call(w, host_of(w), w.block_elsewhere, kBytes)); });
  cases.add("other device from host", [call](World& w, Line& line) { line.code(call(w, w.block_elsewhere, host_of(w), kBytes)); });
}

/// `call(world, device address, bytes)`; the other side is pinned memory of the host.
template <class Call> void host_cases(Cases& cases, Call call) {
  for (const AddressKind& kind : sides()) {
    cases.add(kind.name, [&kind, call](World& w, Line& line) { line.code(w.host != nullptr ? call(w, kind.of(w), kBytes) : CUDA_SUCCESS); });
  }
}

template <class Shape> Shape shape_of(const World& w, CUmemorytype to_type, CUdeviceptr to, CUmemorytype from_type, CUdeviceptr from) {
  Shape shape;
  std::memset(&shape, 0, sizeof shape);
  shape.dstMemoryType = to_type;
  shape.dstDevice = to;
  shape.dstHost = w.host;
  shape.srcMemoryType = from_type;
  shape.srcDevice = from;
  shape.srcHost = w.host;
  shape.dstPitch = 128;
  shape.srcPitch = 64;
  shape.WidthInBytes = 50;
  shape.Height = 7;
  return shape;
}

void set_depth(CUDA_MEMCPY2D&) {}
template <class Shape> void set_depth(Shape& shape) {
  shape.Depth = 1;
  shape.dstHeight = shape.srcHeight = 7;
}

template <class Shape, class Call> void shape_cases(Cases& cases, Call call) {
  const auto add = [&](const char* name, CUmemorytype to_type, CUmemorytype from_type, CUdeviceptr (*to)(const World&),
                       CUdeviceptr (*from)(const World&)) {
    cases.add(name, [=](World& w, Line& line) {
      Shape shape = shape_of<Shape>(w, to_type, to(w), from_type, from(w));
      set_depth(shape);
      line.code(call(w, &shape));
    });
  };
  const auto block = [](const World& w) { return w.block; };
  const auto elsewhere = [](const World& w) { return w.block_elsewhere; };
  add("block from other device", CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE, block, elsewhere);
  add("other device from block, unified", CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED, elsewhere, block);
  add("other device from host", CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, elsewhere, block);
  add("host from other device, unified", CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED, host_of, elsewhere);
  cases.add("null", [call](World& w, Line& line) { line.code(call(w, static_cast<const Shape*>(nullptr))); });
}

}  // namespace

#define BETWEEN(symbol, fill)                                                                                         \
  void cases_##symbol(Cases& cases) {                                                                                 \
    fill(cases, [](World&, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) { return symbol(to, from, bytes); }); \
  }
#define BETWEEN_IN_STREAM(symbol, fill)                                                                                           \
  void cases_##symbol(Cases& cases) {                                                                                             \
    fill(cases, [](World& w, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) { return symbol(to, from, bytes, w.stream); }); \
  }
BETWEEN(cuMemcpy, unified_cases)
BETWEEN(cuMemcpy_ptds, unified_cases)
BETWEEN_IN_STREAM(cuMemcpyAsync, unified_cases)
BETWEEN_IN_STREAM(cuMemcpyAsync_ptsz, unified_cases)
BETWEEN(cuMemcpyDtoD_v2, pair_cases)
BETWEEN(cuMemcpyDtoD_v2_ptds, pair_cases)
BETWEEN_IN_STREAM(cuMemcpyDtoDAsync_v2, pair_cases)
BETWEEN_IN_STREAM(cuMemcpyDtoDAsync_v2_ptsz, pair_cases)

#define WITH_HOST(symbol, call)                                                              \
  void cases_##symbol(Cases& cases) {                                                        \
    host_cases(cases, [](World& w, CUdeviceptr device, std::size_t bytes) { return call; }); \
  }
WITH_HOST(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2(w.host, device, bytes))
WITH_HOST(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2_ptds(w.host, device, bytes))
WITH_HOST(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2(w.host, device, bytes, w.stream))
WITH_HOST(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2_ptsz(w.host, device, bytes, w.stream))
WITH_HOST(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2(device, w.host, bytes))
WITH_HOST(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2_ptds(device, w.host, bytes))
WITH_HOST(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2(device, w.host, bytes, w.stream))
WITH_HOST(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2_ptsz(device, w.host, bytes, w.stream))

#define SHAPED(symbol, Shape)                                                            \
  void cases_##symbol(Cases& cases) {                                                    \
    shape_cases<Shape>(cases, [](World&, const Shape* shape) { return symbol(shape); }); \
  }
#define SHAPED_IN_STREAM(symbol, Shape)                                                              \
  void cases_##symbol(Cases& cases) {                                                                \
    shape_cases<Shape>(cases, [](World& w, const Shape* shape) { return symbol(shape, w.stream); }); \
  }
SHAPED(cuMemcpy2D_v2, CUDA_MEMCPY2D)
SHAPED(cuMemcpy2D_v2_ptds, CUDA_MEMCPY2D)
SHAPED(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D)
SHAPED(cuMemcpy2DUnaligned_v2_ptds, CUDA_MEMCPY2D)
SHAPED_IN_STREAM(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D)
SHAPED_IN_STREAM(cuMemcpy2DAsync_v2_ptsz, CUDA_MEMCPY2D)
SHAPED(cuMemcpy3D_v2, CUDA_MEMCPY3D)
SHAPED(cuMemcpy3D_v2_ptds, CUDA_MEMCPY3D)
SHAPED_IN_STREAM(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D)
SHAPED_IN_STREAM(cuMemcpy3DAsync_v2_ptsz, CUDA_MEMCPY3D)

#define FILLED(symbol, call)                                                                                                   \
  void cases_##symbol(Cases& cases) {                                                                                          \
    host_cases(cases, []([[maybe_unused]] World& w, CUdeviceptr device, [[maybe_unused]] std::size_t bytes) { return call; }); \
  }
FILLED(cuMemsetD8_v2, cuMemsetD8_v2(device, 7, bytes))
FILLED(cuMemsetD8_v2_ptds, cuMemsetD8_v2_ptds(device, 7, bytes))
FILLED(cuMemsetD16_v2, cuMemsetD16_v2(device, 7, bytes / 2))
FILLED(cuMemsetD16_v2_ptds, cuMemsetD16_v2_ptds(device, 7, bytes / 2))
FILLED(cuMemsetD32_v2, cuMemsetD32_v2(device, 7, bytes / 4))
FILLED(cuMemsetD32_v2_ptds, cuMemsetD32_v2_ptds(device, 7, bytes / 4))
FILLED(cuMemsetD2D8_v2, cuMemsetD2D8_v2(device, 128, 7, 50, 7))
FILLED(cuMemsetD2D8_v2_ptds, cuMemsetD2D8_v2_ptds(device, 128, 7, 50, 7))
FILLED(cuMemsetD2D16_v2, cuMemsetD2D16_v2(device, 128, 7, 25, 7))
FILLED(cuMemsetD2D16_v2_ptds, cuMemsetD2D16_v2_ptds(device, 128, 7, 25, 7))
FILLED(cuMemsetD2D32_v2, cuMemsetD2D32_v2(device, 128, 7, 12, 7))
FILLED(cuMemsetD2D32_v2_ptds, cuMemsetD2D32_v2_ptds(device, 128, 7, 12, 7))

#define BETWEEN_CONTEXTS(symbol)                                                                                                                    \
  void cases_##symbol(Cases& cases) {                                                                                                               \
    pair_cases(cases, [](World& w, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) { return symbol(to, w.current, from, w.current, bytes); }); \
  }
BETWEEN_CONTEXTS(cuMemcpyPeer)
BETWEEN_CONTEXTS(cuMemcpyPeer_ptds)
SHAPED(cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER)
SHAPED(cuMemcpy3DPeer_ptds, CUDA_MEMCPY3D_PEER)

}  // namespace battery
