// Copies between devices. By its unified address the driver copies cuMemAlloc memory of any device, with peer access or without, but memory on mapped
// pages or in its own pool only where the device of the copy's stream has access. So a copy that reaches a block of the latter kinds from another
// device is turned into one between contexts, each side with its own: of linear device memory by cuMemcpyPeerAsync, of everything else by
// cuMemcpy3DPeerAsync. Both can be captured and are ordered as the original. CUDA Driver API 13.0 §6.14; DESIGN section 5.
//
// Also SYNC_MEMOPS of blocks on mapped pages, which the driver does not offer there: "synchronous memory operations initiated on the memory region
// will always synchronize" (CUDA Driver API 13.0, cuPointerSetAttribute), so such calls are waited for here.
#include <algorithm>

#include "shim/front_door.hpp"

namespace cupool::shim::front_door {
namespace {

/// Longer runs with a side on the host are copied in pieces of this width, which every device takes (CU_DEVICE_ATTRIBUTE_MAX_PITCH is 2 GiB).
constexpr std::size_t kPiece_bytes = std::size_t{1} << 30;

enum class Waits { no, yes };

/// Where a copy runs: the stream that the call names, the context that owns it, and that context's device.
struct Order {
  CUstream stream = nullptr;
  CUcontext context = nullptr;
  int device = -1;
};

bool find_order(Process& own, CUstream stream, Order* order) {
  order->stream = stream;
  const bool is_handle = !is_default_stream(stream);
  order->context = is_handle ? owner_of_stream(own, stream) : own.contexts.owner(current_context(own));
  if (order->context == nullptr) return false;
  order->device = own.peers.device_of(order->context);
  if (order->device < 0 && !is_handle && own.api.cuCtxGetDevice(&order->device) != CUDA_SUCCESS) return false;
  return order->device >= 0;
}

/// Under `async` plain blocks lie in the driver's pool, which another device reaches only where it was given access (front_door_peers.cpp).
bool is_in_closed_pool(Process& own, const BlockView& block, const Order& order) {
  return own.options->policy == config::Policy::async && block.mempool == 0 && !own.peers.is_granted(order.device, block.device);
}

/// Does `address` lie in a live block, which `*block` then describes, that the device of `order` cannot reach although natively it could?
bool is_far(Process& own, CUdeviceptr address, const Order& order, BlockView* block) {
  if (!own.pools.owns(address) || own.pools.find(address, block) != Ownership::live || block->device == order.device) return false;
  return block->is_paged || is_in_closed_pool(own, *block, order);
}

bool is_far(Process& own, CUdeviceptr address, const Order& order) {
  BlockView block;
  return is_far(own, address, order, &block);
}

/// The context whose rights a device address is copied with; nullptr: the address is the host's.
CUcontext context_of(Process& own, CUdeviceptr address, const Order& order) {
  BlockView block;
  if (own.pools.owns(address) && own.pools.find(address, &block) == Ownership::live) {
    if (block.context != nullptr) return block.context;
    const std::vector<CUcontext> contexts = own.peers.contexts_of(block.device);  // the block's own has ended: any other of its device will do
    return contexts.empty() ? order.context : contexts.front();
  }
  if (own.api.cuPointerGetAttribute == nullptr) return order.context;
  unsigned type = 0;
  if (own.api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS || type != CU_MEMORYTYPE_DEVICE) return nullptr;
  CUcontext context = nullptr;  // what the program has mapped itself has no context, and is reached with the rights of the stream's
  const CUresult result = own.api.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address);
  return result == CUDA_SUCCESS && context != nullptr ? context : order.context;
}

/// Makes the copy of `shape`. A synchronous one is waited for only where it natively is, with a side on the host. While anything captures, the
/// driver's own synchronous form gives the error.
CUresult run(Process& own, const CUDA_MEMCPY3D_PEER& shape, const Order& order, Waits waits) {
  if (waits == Waits::no) return own.api.cuMemcpy3DPeerAsync(&shape, order.stream);
  if (own.pools.capturing() || own.api.cuStreamSynchronize == nullptr) return own.api.cuMemcpy3DPeer(&shape);
  const CUresult result = own.api.cuMemcpy3DPeerAsync(&shape, order.stream);
  const bool has_host_side = shape.srcMemoryType == CU_MEMORYTYPE_HOST || shape.dstMemoryType == CU_MEMORYTYPE_HOST;
  return result == CUDA_SUCCESS && has_host_side ? own.api.cuStreamSynchronize(order.stream) : result;
}

CUresult run_linear(Process& own, CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, std::size_t bytes,
                    const Order& order, Waits waits) {
  if (waits == Waits::yes && own.pools.capturing()) return own.api.cuMemcpyPeer(to, to_context, from, from_context, bytes);
  return own.api.cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, order.stream);
}

/// Sets one side of a copy of linear memory; a null `context`: the side is on the host. There the stream's context is named, since a context is
/// documented to be ignored for arrays only.
void set_source(CUDA_MEMCPY3D_PEER* shape, CUcontext context, CUdeviceptr address, const Order& order) {
  shape->srcMemoryType = context != nullptr ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  shape->srcContext = context != nullptr ? context : order.context;
  shape->srcDevice = address;
  shape->srcHost = reinterpret_cast<const void*>(address);
}

void set_destination(CUDA_MEMCPY3D_PEER* shape, CUcontext context, CUdeviceptr address, const Order& order) {
  shape->dstMemoryType = context != nullptr ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  shape->dstContext = context != nullptr ? context : order.context;
  shape->dstDevice = address;
  shape->dstHost = reinterpret_cast<void*>(address);
}

/// Copies `bytes` of linear memory; a null context: that side is on the host.
CUresult copy_run(Process& own, CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, std::size_t bytes, const Order& order,
                  Waits waits) {
  if (to_context != nullptr && from_context != nullptr) return run_linear(own, to, to_context, from, from_context, bytes, order, waits);
  CUresult result = CUDA_SUCCESS;
  for (std::size_t done = 0; done < bytes && result == CUDA_SUCCESS; done += kPiece_bytes) {
    CUDA_MEMCPY3D_PEER shape{};
    set_source(&shape, from_context, from + done, order);
    set_destination(&shape, to_context, to + done, order);
    shape.WidthInBytes = shape.srcPitch = shape.dstPitch = std::min(bytes - done, kPiece_bytes);
    shape.Height = shape.Depth = shape.srcHeight = shape.dstHeight = 1;
    result = run(own, shape, order, waits);
  }
  return result;
}

enum class Side { device, host, unknown };

/// The body of all one-dimensional copies. `native()` makes the program's own call.
template <class Native> CUresult copy_bytes(CUdeviceptr to, Side to_side, CUdeviceptr from, Side from_side, std::size_t bytes, CUstream stream,
                                            Waits waits, Native&& native) {
  Process& own = process();
  const bool may_be_far = (to_side != Side::host && own.pools.owns(to)) || (from_side != Side::host && own.pools.owns(from));
  Order order;
  if (!may_be_far || bytes == 0 || !can_copy_to_peers(own.api) || !find_order(own, stream, &order)) return native();
  const bool is_to_far = to_side != Side::host && is_far(own, to, order);
  const bool is_from_far = from_side != Side::host && is_far(own, from, order);
  if (!is_to_far && !is_from_far) return native();
  CUcontext to_context = to_side == Side::host ? nullptr : context_of(own, to, order);
  CUcontext from_context = from_side == Side::host ? nullptr : context_of(own, from, order);
  const bool is_wrong_side = (to_side == Side::device && to_context == nullptr) || (from_side == Side::device && from_context == nullptr);
  const bool needs_shape = to_context == nullptr || from_context == nullptr;
  if (is_wrong_side || (needs_shape && !can_copy_shapes_to_peers(own.api))) return native();
  return copy_run(own, to, to_context, from, from_context, bytes, order, waits);
}

/// May a side of this type be device memory? Unified memory may be the host's as well.
bool is_device_type(CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED; }

/// The fields that two- and three-dimensional shapes share. `Shape` is CUDA_MEMCPY2D or CUDA_MEMCPY3D.
template <class Shape> CUDA_MEMCPY3D_PEER between_contexts(Process& own, const Shape& shape, const Order& order) {
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcXInBytes = shape.srcXInBytes;
  peer.srcY = shape.srcY;
  peer.srcArray = shape.srcArray;
  peer.srcPitch = shape.srcPitch;
  peer.dstXInBytes = shape.dstXInBytes;
  peer.dstY = shape.dstY;
  peer.dstArray = shape.dstArray;
  peer.dstPitch = shape.dstPitch;
  peer.WidthInBytes = shape.WidthInBytes;
  peer.Height = shape.Height;
  peer.Depth = 1;
  peer.srcHeight = shape.srcY + shape.Height;
  peer.dstHeight = shape.dstY + shape.Height;
  peer.srcMemoryType = shape.srcMemoryType;
  peer.srcHost = shape.srcHost;
  peer.srcContext = peer.dstContext = order.context;
  if (is_device_type(shape.srcMemoryType)) set_source(&peer, context_of(own, shape.srcDevice, order), shape.srcDevice, order);
  peer.dstMemoryType = shape.dstMemoryType;
  peer.dstHost = shape.dstHost;
  if (is_device_type(shape.dstMemoryType)) set_destination(&peer, context_of(own, shape.dstDevice, order), shape.dstDevice, order);
  return peer;
}

void add_third_dimension(CUDA_MEMCPY3D_PEER*, const CUDA_MEMCPY2D&) {}
void add_third_dimension(CUDA_MEMCPY3D_PEER* peer, const CUDA_MEMCPY3D& shape) {
  peer->srcZ = shape.srcZ;
  peer->srcLOD = shape.srcLOD;
  peer->srcHeight = shape.srcHeight;
  peer->dstZ = shape.dstZ;
  peer->dstLOD = shape.dstLOD;
  peer->dstHeight = shape.dstHeight;
  peer->Depth = shape.Depth;
}

template <class Shape, class Native> CUresult copy_any_shape(const Shape* shape, CUstream stream, Waits waits, Native&& native) {
  Process& own = process();
  Order order;
  if (shape == nullptr || !can_copy_shapes_to_peers(own.api)) return native();
  const bool may_be_far = (is_device_type(shape->dstMemoryType) && own.pools.owns(shape->dstDevice)) ||
                          (is_device_type(shape->srcMemoryType) && own.pools.owns(shape->srcDevice));
  if (!may_be_far || !find_order(own, stream, &order)) return native();
  const bool is_to_far = is_device_type(shape->dstMemoryType) && is_far(own, shape->dstDevice, order);
  const bool is_from_far = is_device_type(shape->srcMemoryType) && is_far(own, shape->srcDevice, order);
  if (!is_to_far && !is_from_far) return native();
  CUDA_MEMCPY3D_PEER peer = between_contexts(own, *shape, order);
  add_third_dimension(&peer, *shape);
  return run(own, peer, order, waits);
}

/// True: every block is part of a cuMemAlloc allocation, which the driver copies from any device.
bool is_plain_memory(const config::Options& options) {
  return options.backing == config::Backing::segments && options.policy != config::Policy::async;
}

CUdeviceptr as_address(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }

bool is_synchronous(Process& own, CUdeviceptr address) {
  BlockView block;
  return own.pools.owns(address) && own.pools.find(address, &block) == Ownership::live && block.is_paged && block.sync_memops;
}

/// The device address of a side of a shape; 0: the side is on the host, or an array.
template <class Shape> CUdeviceptr source_of(const Shape* shape) {
  return shape != nullptr && is_device_type(shape->srcMemoryType) ? shape->srcDevice : 0;
}
template <class Shape> CUdeviceptr destination_of(const Shape* shape) {
  return shape != nullptr && is_device_type(shape->dstMemoryType) ? shape->dstDevice : 0;
}

}  // namespace

void note_device(int device) {
  Process& own = process();
  if (g_copies_are_watched.load(std::memory_order_relaxed) || is_plain_memory(*own.options)) return;
  if (own.peers.has_others(device)) g_copies_are_watched.store(true, std::memory_order_relaxed);
}

CUresult settle(CUresult result, bool is_per_thread, std::initializer_list<CUdeviceptr> touched) {
  Process& own = process();
  const bool waits =
      result == CUDA_SUCCESS && std::any_of(touched.begin(), touched.end(), [&own](CUdeviceptr address) { return is_synchronous(own, address); });
  return waits && !own.pools.capturing() && own.api.cuStreamSynchronize != nullptr ? own.api.cuStreamSynchronize(plain_handle(nullptr, is_per_thread))
                                                                                   : result;
}

CUresult copy_unified(const Real<CUresult(CUdeviceptr, CUdeviceptr, std::size_t)>& real, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  const CUresult result = copy_bytes(to, Side::unknown, from, Side::unknown, bytes, plain_handle(nullptr, real.is_per_thread()), Waits::yes,
                                     [&] { return real(to, from, bytes); });
  return settle(result, real.is_per_thread(), {to, from});
}

CUresult copy_unified(const Real<CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>& real, CUdeviceptr to, CUdeviceptr from,
                      std::size_t bytes, CUstream stream) {
  return copy_bytes(to, Side::unknown, from, Side::unknown, bytes, plain_handle(stream, real.is_per_thread()), Waits::no,
                    [&] { return real(to, from, bytes, stream); });
}

CUresult copy_on_devices(const Real<CUresult(CUdeviceptr, CUdeviceptr, std::size_t)>& real, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  const CUresult result = copy_bytes(to, Side::device, from, Side::device, bytes, plain_handle(nullptr, real.is_per_thread()), Waits::yes,
                                     [&] { return real(to, from, bytes); });
  return settle(result, real.is_per_thread(), {to, from});
}

CUresult copy_on_devices(const Real<CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>& real, CUdeviceptr to, CUdeviceptr from,
                         std::size_t bytes, CUstream stream) {
  return copy_bytes(to, Side::device, from, Side::device, bytes, plain_handle(stream, real.is_per_thread()), Waits::no,
                    [&] { return real(to, from, bytes, stream); });
}

CUresult copy_to_host(const Real<CUresult(void*, CUdeviceptr, std::size_t)>& real, void* to, CUdeviceptr from, std::size_t bytes) {
  const CUresult result = copy_bytes(as_address(to), Side::host, from, Side::device, bytes, plain_handle(nullptr, real.is_per_thread()), Waits::yes,
                                     [&] { return real(to, from, bytes); });
  return settle(result, real.is_per_thread(), {from});
}

CUresult copy_to_host(const Real<CUresult(void*, CUdeviceptr, std::size_t, CUstream)>& real, void* to, CUdeviceptr from, std::size_t bytes,
                      CUstream stream) {
  return copy_bytes(as_address(to), Side::host, from, Side::device, bytes, plain_handle(stream, real.is_per_thread()), Waits::no,
                    [&] { return real(to, from, bytes, stream); });
}

CUresult copy_from_host(const Real<CUresult(CUdeviceptr, const void*, std::size_t)>& real, CUdeviceptr to, const void* from, std::size_t bytes) {
  const CUresult result = copy_bytes(to, Side::device, as_address(from), Side::host, bytes, plain_handle(nullptr, real.is_per_thread()), Waits::yes,
                                     [&] { return real(to, from, bytes); });
  return settle(result, real.is_per_thread(), {to});
}

CUresult copy_from_host(const Real<CUresult(CUdeviceptr, const void*, std::size_t, CUstream)>& real, CUdeviceptr to, const void* from,
                        std::size_t bytes, CUstream stream) {
  return copy_bytes(to, Side::device, as_address(from), Side::host, bytes, plain_handle(stream, real.is_per_thread()), Waits::no,
                    [&] { return real(to, from, bytes, stream); });
}

CUresult copy_shape(const Real<CUresult(const CUDA_MEMCPY2D*)>& real, const CUDA_MEMCPY2D* shape) {
  const CUresult result = copy_any_shape(shape, plain_handle(nullptr, real.is_per_thread()), Waits::yes, [&] { return real(shape); });
  return settle(result, real.is_per_thread(), {destination_of(shape), source_of(shape)});
}
CUresult copy_shape(const Real<CUresult(const CUDA_MEMCPY2D*, CUstream)>& real, const CUDA_MEMCPY2D* shape, CUstream stream) {
  return copy_any_shape(shape, plain_handle(stream, real.is_per_thread()), Waits::no, [&] { return real(shape, stream); });
}
CUresult copy_shape(const Real<CUresult(const CUDA_MEMCPY3D*)>& real, const CUDA_MEMCPY3D* shape) {
  const CUresult result = copy_any_shape(shape, plain_handle(nullptr, real.is_per_thread()), Waits::yes, [&] { return real(shape); });
  return settle(result, real.is_per_thread(), {destination_of(shape), source_of(shape)});
}
CUresult copy_shape(const Real<CUresult(const CUDA_MEMCPY3D*, CUstream)>& real, const CUDA_MEMCPY3D* shape, CUstream stream) {
  return copy_any_shape(shape, plain_handle(stream, real.is_per_thread()), Waits::no, [&] { return real(shape, stream); });
}

CUresult copy_to_peer(const Real<CUresult(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t)>& real, CUdeviceptr to, CUcontext to_context,
                      CUdeviceptr from, CUcontext from_context, std::size_t bytes) {
  return settle(real(to, to_context, from, from_context, bytes), real.is_per_thread(), {to, from});
}
CUresult copy_to_peer(const Real<CUresult(const CUDA_MEMCPY3D_PEER*)>& real, const CUDA_MEMCPY3D_PEER* shape) {
  return settle(real(shape), real.is_per_thread(), {destination_of(shape), source_of(shape)});
}

}  // namespace cupool::shim::front_door
