// Memory that the program takes outside the pool. The calls go to the driver, and what they take is counted and held to CUPOOL_LIMIT where the limit
// covers it (PoolSet::reserve_outside knows). A call that would exceed the limit is out of memory, unless the driver has another reason to refuse it.
// Freed memory is found by its address or handle, and taken out of the books before the driver can give the same one to another thread.
// CUDA Driver API 13.0 §6.14–6.16.
#include <algorithm>
#include <new>

#include "pool/core/bytes.hpp"
#include "shim/array_bytes.hpp"
#include "shim/front_door.hpp"
#include "shim/memory_location.hpp"

namespace cupool::shim::front_door {
namespace {

/// The device of `owner`, or of the current context where that is null; kNoDevice: the driver does not say.
int current_device(const Process& own, CUcontext owner) {
  if (const std::optional<int> known = owner != nullptr ? own.pools.device_of(owner) : std::nullopt) return *known;
  CUdevice device = 0;
  return own.api.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : kNoDevice;
}

std::uint64_t key_of(CUdeviceptr address) { return address; }
template <class T> std::uint64_t key_of(T* handle) { return reinterpret_cast<std::uintptr_t>(handle); }

/// Passes the driver's answer to a call that takes device memory on; a refusal for lack of memory goes into a report.
CUresult noted(CUresult result, int device, std::size_t bytes, const Refused& what) {
  if (result == CUDA_SUCCESS || device == kNoDevice) return result;
  Process& own = process();
  if (result != CUDA_ERROR_OUT_OF_MEMORY) {
    own.pools.note_failure(device);
    return result;
  }
  own.pools.note_refusal(device, bytes, what);
  own.reporter.after_oom();
  return result;
}

/// Books memory that the driver has given. False where host memory is out: then it is as if the program had taken it past us.
template <class MakeKey> bool commit(int device, OutsideKind kind, std::size_t bytes, CUcontext context, MakeKey&& make_key) {
  try {
    process().pools.commit_outside(device, kind, make_key(), bytes, context);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

/// Reserves `bytes` against the limit, makes `call`, and books the memory. `make_key()` names the memory once the call has succeeded. The memory ends
/// with `context`; nullptr: with none. `ask`: a call that the driver must refuse, to learn whether it has another reason than the limit.
template <class Call, class MakeKey> CUresult account(int device, CUcontext context, OutsideKind kind, std::size_t bytes, const char* symbol,
                                                      Call&& call, MakeKey&& make_key, const PoolSet::AskDriver& ask = {}) {
  Process& own = process();
  const bool is_of_device = kind != OutsideKind::host;
  const Refused what{symbol, kind == OutsideKind::managed};
  // The pool first gives back what it keeps for reuse, which the driver natively would have had. It has no host memory to give.
  const auto served = [&] { return is_of_device ? call_with_room(call, device, bytes) : call(); };
  if (bytes == 0) return call();
  if (bytes > kMostDevice_bytes) return is_of_device ? noted(call(), device, bytes, what) : call();
  if (device == kNoDevice) return served();
  if (is_of_device) own.page.publish();
  if (const Status reserved = own.pools.reserve_outside(device, kind, bytes, symbol, ask); !reserved.ok()) {
    own.reporter.after_oom();
    return reserved.code();
  }
  const CUresult result = served();
  if (result != CUDA_SUCCESS || !commit(device, kind, bytes, context, make_key)) own.pools.cancel_outside(device, kind, bytes);
  if (result == CUDA_SUCCESS && is_of_device) own.saw_unpooled(symbol);
  return is_of_device ? noted(result, device, bytes, what) : result;
}

template <class Handle, class Call>
CUresult account_current(OutsideKind kind, std::size_t bytes, const char* symbol, Handle* out, Call&& call, const PoolSet::AskDriver& ask = {}) {
  if (out == nullptr) return call();
  const CUcontext owner = current_owner(process());
  return account(
      current_device(process(), owner), owner, kind, bytes, symbol, call, [out] { return key_of(*out); }, ask);
}

}  // namespace

void refused_room(const char* symbol, int device) {
  Process& own = process();
  if (device == kNoDevice) device = current_device(own, current_owner(own));
  if (device != kNoDevice) own.pools.warn_of_refusal(device, symbol);
  own.reporter.pass_messages();
}

std::optional<PoolSet::OutsideEntry> take_outside(CUdeviceptr address) {
  PoolSet& pools = process().pools;
  const std::optional<PoolSet::OutsideEntry> managed = pools.take_outside(OutsideKind::managed, key_of(address));
  return managed ? managed : pools.take_outside(OutsideKind::host, key_of(address));
}

CUresult allocate_managed(const Real<CUresult(CUdeviceptr*, std::size_t, unsigned)>& real, CUdeviceptr* out, std::size_t bytes, unsigned flags) {
  return account_current(OutsideKind::managed, bytes, real.symbol(), out, [&] { return real(out, bytes, flags); });
}

CUresult allocate_host(const Real<CUresult(void**, std::size_t, unsigned)>& real, void** out, std::size_t bytes, unsigned flags) {
  return account_current(OutsideKind::host, bytes, real.symbol(), out, [&] { return real(out, bytes, flags); });
}

CUresult allocate_host(const Real<CUresult(void**, std::size_t)>& real, void** out, std::size_t bytes) {
  return account_current(OutsideKind::host, bytes, real.symbol(), out, [&] { return real(out, bytes); });
}

CUresult allocate_host(const Real<CUresult(void**, unsigned)>& real, void** out, unsigned bytes) {
  return account_current(OutsideKind::host, bytes, real.symbol(), out, [&] { return real(out, bytes); });
}

CUresult free_host(const Real<CUresult(void*)>& real, void* address) {
  return free_outside(process().pools.take_outside(OutsideKind::host, key_of(address)), [&] { return real(address); });
}

CUresult register_host(const Real<CUresult(void*, std::size_t, unsigned)>& real, void* address, std::size_t bytes, unsigned flags) {
  return account_current(OutsideKind::host, bytes, real.symbol(), &address, [&] { return real(address, bytes, flags); });
}

CUresult create_array(const Real<CUresult(CUarray*, const CUDA_ARRAY_DESCRIPTOR*)>& real, CUarray* out, const CUDA_ARRAY_DESCRIPTOR* shape) {
  const std::size_t bytes = shape != nullptr ? array_bytes(shape->Width, shape->Height, 1, shape->Format, shape->NumChannels) : 0;
  return account_current(OutsideKind::array, bytes, real.symbol(), out, [&] { return real(out, shape); });
}

namespace {

/// The array's entries are taken out before the call, after which the driver may give the same handle to another thread.
template <class Array> CUresult destroy_any_array(const Real<CUresult(Array)>& real, Array array) {
  Process& own = process();
  VmmLedger::Arrays::node_type parts = own.vmm.take_array(array);
  const CUresult result = free_outside(own.pools.take_outside(OutsideKind::array, key_of(array)), [&] { return real(array); });
  if (result != CUDA_SUCCESS) own.vmm.not_destroyed(std::move(parts));
  else
    while (const std::uint64_t key = own.vmm.next_gone(parts)) own.pools.release_outside(OutsideKind::program_vmm, key);
  return result;
}

/// An array of `shape` with so many `levels`, which `call` creates.
template <class Array, class Call>
CUresult create_any_array(const char* symbol, Array* out, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels, Call&& call) {
  const std::size_t bytes = shape != nullptr ? array_bytes(*shape, levels) : 0;
  const CUresult result = account_current(OutsideKind::array, bytes, symbol, out, call);
  if (result != CUDA_SUCCESS || out == nullptr || shape == nullptr || !is_mapped_later(*shape)) return result;
  process().vmm.array_made(*out, (shape->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0, current_owner(process()));
  forget_mapped_arrays();
  return result;
}

}  // namespace

CUresult create_array(const Real<CUresult(CUarray*, const CUDA_ARRAY3D_DESCRIPTOR*)>& real, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  return create_any_array(real.symbol(), out, shape, 1, [&] { return real(out, shape); });
}

CUresult create_array(const Real<CUresult(CUmipmappedArray*, const CUDA_ARRAY3D_DESCRIPTOR*, unsigned)>& real, CUmipmappedArray* out,
                      const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  return create_any_array(real.symbol(), out, shape, levels, [&] { return real(out, shape, levels); });
}

CUresult destroy_array(const Real<CUresult(CUarray)>& real, CUarray array) { return destroy_any_array(real, array); }

CUresult destroy_array(const Real<CUresult(CUmipmappedArray)>& real, CUmipmappedArray array) { return destroy_any_array(real, array); }

CUresult create_physical(const Real<CUresult(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long)>& real,
                         CUmemGenericAllocationHandle* out, std::size_t bytes, const CUmemAllocationProp* properties, unsigned long long flags) {
  const auto call = [&] { return real(out, bytes, properties, flags); };
  const auto ask = [&] {
    CUmemGenericAllocationHandle nothing{};
    return real(&nothing, bytes + kImpossible_bytes, properties, flags);
  };
  const std::optional<int> device = properties != nullptr ? device_of(properties->location) : std::nullopt;
  if (out == nullptr || !device) return call();
  return account(
      *device, nullptr, OutsideKind::program_vmm, bytes, real.symbol(), call, [out] { return process().vmm.created(*out); }, std::cref(ask));
}

CUresult release_physical(const Real<CUresult(CUmemGenericAllocationHandle)>& real, CUmemGenericAllocationHandle handle) {
  Process& own = process();
  const VmmLedger::Released released = own.vmm.released(handle);
  const CUresult result =
      free_outside(released.is_gone ? own.pools.take_outside(OutsideKind::program_vmm, released.key) : std::nullopt, [&] { return real(handle); });
  if (result != CUDA_SUCCESS) own.vmm.not_released(handle, released);
  return result;
}

CUresult serve_by_driver(std::size_t bytes, const char* symbol, CUdeviceptr* out, CUstream stream, const MempoolFacts& mempool,
                         const std::function<CUresult()>& call, const PoolSet::AskDriver& ask) {
  Process& own = process();
  const bool is_handle = stream != nullptr && !is_default_stream(stream);
  CUcontext owner = is_handle ? owner_of_stream(own, stream) : nullptr;
  if (owner == nullptr) owner = current_owner(own);
  const int stream_device = current_device(own, owner);
  if (out != nullptr && mempool.made && mempool.made->memory != MempoolMemory::device) {
    // Memory of such a pool counts as that of cuMemHostAlloc or cuMemAllocManaged does, but it ends with no context.
    const OutsideKind kind = mempool.made->memory == MempoolMemory::host ? OutsideKind::host : OutsideKind::managed;
    return account(stream_device, nullptr, kind, bytes, symbol, call, [out] { return key_of(*out); });
  }
  const int device = mempool.made ? mempool.made->device : stream_device;
  if (device != stream_device) owner = nullptr;  // the pool is another device's, so that its memory outlives this context
  const auto served = [&] { return call_with_room(call); };
  if (out == nullptr || bytes == 0) return call();
  if (bytes > kMostDevice_bytes) return noted(call(), device, bytes, {symbol});
  if (device == kNoDevice) return served();
  const DriverServed request{device,
                             owner,
                             owner != nullptr && own.contexts.life_in(owner, device) == BlockLife::context,
                             mempool.is_default(device),
                             StreamBook::identity_of(stream),
                             bytes,
                             symbol,
                             [&] { return mempool.bounds(device); },
                             [&] { return mempool.handle(device); },
                             stream};
  const CUresult result = own.pools.allocate_by_driver(request, out, std::cref(served), ask);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) own.reporter.after_oom();
  own.reporter.pass_messages();
  return result;
}

}  // namespace cupool::shim::front_door
