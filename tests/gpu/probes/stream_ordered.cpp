// Stream-ordered memory: what a pointer of it answers, which frees it takes from where, to whom it belongs when contexts
// come and go, and when its bytes are used again. Calls in destroyed streams are not asked: undefined, and may crash.
#include "tests/gpu/probes/busy.hpp"

namespace probe {
namespace {

constexpr std::size_t kOddBytes = 1000003;

const char* name_of(CUcontext found, CUcontext primary, CUcontext other = nullptr) {
  if (found == nullptr) return "none";
  if (found == primary) return "the primary";
  return found == other ? "the other context" : "an unknown context";
}

/// Any attribute as a number. Eight bytes are there whatever the driver writes: of a "boolean" it does not say how wide it is.
void ask_attribute(const char* name, CUpointer_attribute attribute, CUdeviceptr address, const char* assumed = nullptr) {
  unsigned long long value = 0;
  const CUresult code = CU(cuPointerGetAttribute)(&value, attribute, address);
  const std::string question = std::string("stream-ordered memory: ") + name;
  const Json found = code == CUDA_SUCCESS ? Json(value) : Json(code);
  if (assumed != nullptr) answer(question, found, Json::raw(assumed));
  else answer(question, found);
}

void ask_owner(const Session& session, CUdeviceptr address) {
  CUcontext owner = nullptr;
  const CUresult code = CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address);
  const char* const question = "stream-ordered memory: CONTEXT says";
  if (code == CUDA_SUCCESS) answer(question, name_of(owner, session.context), "none");
  else answer(question, code, "none");
}

void ask_attributes(const Session& session) {
  const Stream stream;
  const CUdeviceptr address = take_async(kOddBytes, stream);
  stream.synchronize();
  ask_owner(session, address);
  ask_attribute("MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  ask_attribute("DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  ask_attribute("IS_MANAGED", CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
  ask_attribute("RANGE_SIZE of 1000003 bytes", CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
  ask_attribute("MAPPING_SIZE of 1000003 bytes", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address);
  ask_attribute("ALLOWED_HANDLE_TYPES", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address);
  ask_attribute("IS_GPU_DIRECT_RDMA_CAPABLE", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, address);
  ask_attribute("IS_LEGACY_CUDA_IPC_CAPABLE", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address, "0");
  CUipcMemHandle handle{};
  answer("stream-ordered memory: cuIpcGetMemHandle", CU(cuIpcGetMemHandle)(&handle, address), CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool pool = nullptr;
  prepare(CU(cuPointerGetAttribute)(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address), "MEMPOOL_HANDLE");
  answer("stream-ordered memory: MEMPOOL_HANDLE is the default pool", pool == default_pool(session.device), true);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  prepare(CU(cuMemGetAddressRange_v2)(&base, &bytes, address + 4096), "cuMemGetAddressRange");
  answer("stream-ordered memory: cuMemGetAddressRange of an interior address is the block", base == address, true);
  answer("stream-ordered memory: size by cuMemGetAddressRange of 1000003 bytes", bytes, kOddBytes);
  unsigned one = 1;
  answer("stream-ordered memory: cuPointerSetAttribute(SYNC_MEMOPS)", CU(cuPointerSetAttribute)(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
  CUmemGenericAllocationHandle physical = 0;
  answer("stream-ordered memory: cuMemRetainAllocationHandle",
         CU(cuMemRetainAllocationHandle)(&physical, reinterpret_cast<void*>(address)));  // NOLINT: the signature wants a pointer
  answer("stream-ordered memory: aligned to 512", address % 512 == 0, true);
  prepare(CU(cuMemFreeAsync)(address, stream), "cuMemFreeAsync");
}

void ask_bad_arguments() {
  const Stream stream;
  CUdeviceptr address = 0x1234;
  answer("cuMemAllocAsync of 0 bytes", CU(cuMemAllocAsync)(&address, 0, stream));
  answer("cuMemAllocAsync with a NULL output", CU(cuMemAllocAsync)(nullptr, 512, stream), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr failed = 0x1234;
  static_cast<void>(CU(cuMemAllocAsync)(&failed, std::size_t{1} << 62, stream));
  answer("a failed cuMemAllocAsync: what the output holds (0x1234 before)", failed);
  answer("cuMemAllocAsync of 2^62 bytes", CU(cuMemAllocAsync)(&address, std::size_t{1} << 62, stream), CUDA_ERROR_OUT_OF_MEMORY);
  answer("cuMemAllocFromPoolAsync from a NULL pool", CU(cuMemAllocFromPoolAsync)(&address, 512, nullptr, stream));
  answer("cuMemFreeAsync of 0", CU(cuMemFreeAsync)(0, stream));
  answer("cuMemFreeAsync of an address that was never given", CU(cuMemFreeAsync)(0x1000, stream), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr block = take_async(1 << 20, stream);
  answer("cuMemFreeAsync of an interior address", CU(cuMemFreeAsync)(block + 512, stream), CUDA_ERROR_INVALID_VALUE);
  prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
  answer("cuMemFreeAsync of a freed address", CU(cuMemFreeAsync)(block, stream), CUDA_ERROR_INVALID_VALUE);
  answer("cuMemFree of an address freed by cuMemFreeAsync", CU(cuMemFree_v2)(block), CUDA_ERROR_INVALID_VALUE);
}

void ask_mixed_frees() {
  const Stream stream, second;
  Memory plain(1 << 20);
  const CUresult code = CU(cuMemFreeAsync)(plain.address(), stream);
  answer("cuMemFreeAsync of cuMemAlloc memory", code, CUDA_SUCCESS);
  if (code == CUDA_SUCCESS) plain.forget();
  const CUdeviceptr ordered = take_async(1 << 20, stream);
  answer("cuMemFree of stream-ordered memory", CU(cuMemFree_v2)(ordered), CUDA_SUCCESS);
  const CUdeviceptr elsewhere = take_async(1 << 20, stream);
  answer("cuMemFreeAsync on another stream than it was allocated on", CU(cuMemFreeAsync)(elsewhere, second), CUDA_SUCCESS);
  const CUdeviceptr legacy = take_async(1 << 20, stream);
  answer("cuMemFreeAsync on the legacy default stream", CU(cuMemFreeAsync)(legacy, CU_STREAM_LEGACY), CUDA_SUCCESS);
  const CUdeviceptr per_thread = take_async(1 << 20, stream);
  answer("cuMemFreeAsync on the per-thread default stream", CU(cuMemFreeAsync)(per_thread, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  second.synchronize();
  stream.synchronize();
}

/// The primary is current; the stream is of another context of the same device.
void ask_ordered_on_foreign_stream(const Session& session) {
  OtherContext other(session);
  CUstream theirs = nullptr;
  prepare(CU(cuStreamCreate)(&theirs, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  CUdeviceptr address = 0;
  const CUresult taken = CU(cuMemAllocAsync)(&address, 1 << 20, theirs);
  answer("cuMemAllocAsync with a stream of another context", taken);
  if (taken == CUDA_SUCCESS) {
    CUcontext owner = nullptr;
    const CUresult code = CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address);
    const char* const question = "cuMemAllocAsync with a stream of another context: CONTEXT says";
    if (code == CUDA_SUCCESS) answer(question, name_of(owner, session.context, other));
    else answer(question, code);
    answer("cuMemAllocAsync with a stream of another context: cuMemFreeAsync on that stream", CU(cuMemFreeAsync)(address, theirs));
  }
  const Stream mine;
  const CUdeviceptr block = take_async(1 << 20, mine);
  const CUresult freed = CU(cuMemFreeAsync)(block, theirs);
  answer("cuMemFreeAsync with a stream of another context", freed);
  if (freed != CUDA_SUCCESS) prepare(CU(cuMemFreeAsync)(block, mine), "cuMemFreeAsync");
  Memory plain(1 << 20);
  const CUresult plainly = CU(cuMemFreeAsync)(plain.address(), theirs);
  answer("cuMemFreeAsync of cuMemAlloc memory with a stream of another context", plainly);
  if (plainly == CUDA_SUCCESS) plain.forget();
}

void ask_ordered_without_context(const Session& session) {
  const Stream stream;
  const CUdeviceptr block = take_async(1 << 20, stream);
  leave_every_context();
  CUdeviceptr address = 0;
  const CUresult named = CU(cuMemAllocAsync)(&address, 512, stream);
  answer("no current context: cuMemAllocAsync with a stream", named);
  if (named == CUDA_SUCCESS) static_cast<void>(CU(cuMemFreeAsync)(address, stream));
  answer("no current context: cuMemAllocAsync with the NULL stream", CU(cuMemAllocAsync)(&address, 512, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  const CUresult freed = CU(cuMemFreeAsync)(block, stream);
  answer("no current context: cuMemFreeAsync with a stream", freed);
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  if (freed != CUDA_SUCCESS) prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
}

/// Pools belong to a device: their memory outlives the context whose stream it was allocated on (CUDA Driver API 13.0, cuCtxDestroy).
void ask_survival(const Session& session) {
  CUdeviceptr address = 0;
  {
    OtherContext other(session);
    Stream theirs;
    address = take_async(1 << 20, theirs);
    theirs.synchronize();
    other.destroy();
    theirs.forget();
  }
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUcontext owner = nullptr;
  answer("the context of its stream is destroyed: cuMemGetAddressRange", CU(cuMemGetAddressRange_v2)(&base, &bytes, address), CUDA_SUCCESS);
  const CUresult asked = CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address);
  answer("the context of its stream is destroyed: cuPointerGetAttribute(CONTEXT)", asked);
  if (asked == CUDA_SUCCESS) answer("the context of its stream is destroyed: CONTEXT says", name_of(owner, session.context));
  if (asked == CUDA_SUCCESS) answer("the context of its stream is destroyed: cuMemsetD8", CU(cuMemsetD8_v2)(address, 1, 64), CUDA_SUCCESS);
  prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");  // `mine` is not ordered behind the set
  const Stream mine;
  answer("the context of its stream is destroyed: cuMemFreeAsync", CU(cuMemFreeAsync)(address, mine), CUDA_SUCCESS);
  answer("the context of its stream is destroyed: cuMemFree afterwards", CU(cuMemFree_v2)(address));
}

/// Where the second block lies tells what the driver waited for, or took on trust.
void ask_reuse(const Session& session) {
  const Spin spin;
  const CUmemoryPool pool = default_pool(session.device);
  keep_freed_bytes(pool, ~std::uint64_t{0});
  const Stream first, second;
  const CUdeviceptr warm = take_async(64 << 20, first);
  prepare(CU(cuMemFreeAsync)(warm, first), "cuMemFreeAsync");
  first.synchronize();
  const auto freed_behind_work = [&] {
    const CUdeviceptr block = take_async(3 << 20, first);
    spin.launch(first, kWork_ns);
    prepare(CU(cuMemFreeAsync)(block, first), "cuMemFreeAsync");
    return block;
  };
  const auto settle = [&](CUdeviceptr block, CUstream stream) {
    prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
    first.synchronize();
    second.synchronize();
  };
  CUdeviceptr before = freed_behind_work();
  CUdeviceptr after = take_async(3 << 20, first);
  answer("freed behind running work, allocated again on the same stream: the same address", after == before);
  settle(after, first);
  before = freed_behind_work();
  after = take_async(3 << 20, second);
  answer("freed behind running work, allocated again on another stream: the same address", after == before, false);
  settle(after, second);
  before = freed_behind_work();
  CUevent event = nullptr;
  prepare(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  prepare(CU(cuEventRecord)(event, first), "cuEventRecord");
  prepare(CU(cuStreamWaitEvent)(second, event, 0), "cuStreamWaitEvent");
  after = take_async(3 << 20, second);
  answer("freed behind running work, allocated again on a stream that waits for it: the same address", after == before);
  settle(after, second);
}

/// A second free of cuMemAlloc memory, before and after the first one's work is known to be done, and what the driver is good for then.
void ask_second_free(const std::string& when, bool wait) {
  const Stream stream;
  Memory plain(1 << 20);
  const CUdeviceptr freed = plain.address();
  prepare(CU(cuMemFreeAsync)(freed, stream), "cuMemFreeAsync");
  plain.forget();
  if (wait) stream.synchronize();
  const std::string words = "freed by cuMemFreeAsync, " + when + ": ";
  CUdeviceptr base = 0, address = 0;
  std::size_t bytes = 0;
  answer(words + "cuMemGetAddressRange", CU(cuMemGetAddressRange_v2)(&base, &bytes, freed));
  answer(words + "cuMemFree", CU(cuMemFree_v2)(freed));
  answer(words + "cuMemFree, a third time", CU(cuMemFree_v2)(freed));
  answer(words + "cuMemAllocAsync afterwards", CU(cuMemAllocAsync)(&address, 1 << 20, stream));
  answer(words + "cuStreamSynchronize afterwards", CU(cuStreamSynchronize)(stream));
}

}  // namespace

/// A process of its own: the driver of an H200 (580.159) takes the second free and dies of it later.
void ask_double_frees(Session&) {
  group("a second free after waiting", [] { ask_second_free("which is done", true); });
  group("a second free at once", [] { ask_second_free("at once", false); });
}

void ask_stream_ordered(Session& session) {
  group("attributes", [&] { ask_attributes(session); });
  group("arguments that cannot be", ask_bad_arguments);
  group("frees of either kind", ask_mixed_frees);
  group("a stream of another context", [&] { ask_ordered_on_foreign_stream(session); });
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  group("no current context", [&] { ask_ordered_without_context(session); });
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  group("a context that ends", [&] { ask_survival(session); });
  group("reuse", [&] { ask_reuse(session); });
  ask_elsewhere("double_frees");
}

}  // namespace probe
