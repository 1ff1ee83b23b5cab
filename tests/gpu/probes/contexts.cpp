// Memory and contexts: calls without a current context or with another one, what a reset or a destroyed context leaves
// behind, and to whom the memory of a green context belongs.
#include "tests/gpu/probes/probe.hpp"
#include "tests/gpu/probes/timing.hpp"
#include "tests/gpu/probes/work.hpp"

namespace probe {
namespace {

void ask_without_context(Session& session) {
  Memory memory(1 << 20);
  auto* set_current = CU(cuCtxSetCurrent);
  prepare(set_current(nullptr), "cuCtxSetCurrent(NULL)");
  CUdevice device = 0;
  CUdeviceptr address = 0;
  std::size_t bytes = 0, total = 0;
  CUcontext owner = nullptr;
  const CUresult no_context = CU(cuCtxGetDevice)(&device);
  answer("no current context: cuCtxGetDevice", no_context, CUDA_ERROR_INVALID_CONTEXT);
  answer("no current context: cuMemAlloc", CU(cuMemAlloc_v2)(&address, 512), CUDA_ERROR_INVALID_CONTEXT);
  answer("no current context: cuMemGetInfo", CU(cuMemGetInfo_v2)(&bytes, &total), CUDA_ERROR_INVALID_CONTEXT);
  answer("no current context: cuMemGetAddressRange", CU(cuMemGetAddressRange_v2)(&address, &bytes, memory.address()));
  answer("no current context: cuPointerGetAttribute(CONTEXT)", CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, memory.address()));
  answer("no current context: cuMemFree of 0", CU(cuMemFree_v2)(0));
  answer("no current context: cuMemFree of an unknown address", CU(cuMemFree_v2)(0x1000));
  const CUresult freed = CU(cuMemFree_v2)(memory.address());
  answer("no current context: cuMemFree of a live block", freed, CUDA_SUCCESS);
  if (freed == CUDA_SUCCESS) memory.forget();
  prepare(set_current(session.context), "cuCtxSetCurrent");
}

void ask_other_context(Session& session) {
  CUcontext other = nullptr;
  Memory memory(1 << 20);
  prepare(CU(cuCtxCreate_v2)(&other, 0, session.device), "cuCtxCreate");
  answer("another context is current: cuMemsetD8 on the block", CU(cuMemsetD8_v2)(memory.address(), 7, 64), CUDA_SUCCESS);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  answer("another context is current: cuMemGetAddressRange of the block", CU(cuMemGetAddressRange_v2)(&base, &bytes, memory.address()), CUDA_SUCCESS);
  const CUresult freed = CU(cuMemFree_v2)(memory.address());
  answer("another context is current: cuMemFree of the block", freed, CUDA_SUCCESS);
  if (freed == CUDA_SUCCESS) memory.forget();
  const Memory theirs(1 << 20);
  CUevent event = nullptr;
  prepare(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  prepare(CU(cuEventRecord)(event, nullptr), "cuEventRecord");
  prepare(CU(cuCtxDestroy_v2)(other), "cuCtxDestroy");
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  answer("its context is destroyed: cuMemFree of the block", CU(cuMemFree_v2)(theirs.address()));
  answer("its context is destroyed: cuMemGetAddressRange of the block", CU(cuMemGetAddressRange_v2)(&base, &bytes, theirs.address()));
}

void ask_freed_with_context(Session& session) {
  CUcontext other = nullptr;
  std::size_t before = 0, during = 0, after = 0, total = 0;
  auto* info = CU(cuMemGetInfo_v2);
  info(&before, &total);
  prepare(CU(cuCtxCreate_v2)(&other, 0, session.device), "cuCtxCreate");
  CUdeviceptr address = 0;
  prepare(CU(cuMemAlloc_v2)(&address, 64 << 20), "cuMemAlloc");
  info(&during, &total);
  CU(cuCtxDestroy_v2)(other);
  CU(cuCtxSetCurrent)(session.context);
  info(&after, &total);
  answer("what a destroyed context held is free again (64 MiB)", after >= during + (std::size_t{64} << 20), true);
}

/// Last: it takes the session's own context down, as cudaDeviceReset does, and brings it up again.
void ask_reset(Session& session) {
  Memory memory(1 << 20);
  CUevent event = nullptr;
  prepare(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  prepare(CU(cuEventRecord)(event, nullptr), "cuEventRecord");
  unsigned long long id_before = 0, id_after = 0;
  const bool has_id = find_symbol("cuCtxGetId") != nullptr;
  if (has_id) CU(cuCtxGetId)(session.context, &id_before);
  const CUdeviceptr old = memory.address();
  memory.forget();
  prepare(CU(cuDevicePrimaryCtxReset_v2)(session.device), "cuDevicePrimaryCtxReset");
  unsigned flags = 0;
  int active = 1;
  CU(cuDevicePrimaryCtxGetState)(session.device, &flags, &active);
  answer("after a reset of the primary context: it is active", active != 0, false);
  CUcontext current = nullptr;
  const CUresult code = CU(cuCtxGetCurrent)(&current);
  answer("after a reset: cuCtxGetCurrent", code);
  answer("after a reset: the old handle is still current", current == session.context);
  CUdeviceptr address = 0;
  CUdevice told = 0;
  answer("after a reset, not retained again: cuCtxGetDevice", CU(cuCtxGetDevice)(&told));
  answer("after a reset, not retained again: cuMemAlloc", CU(cuMemAlloc_v2)(&address, 512));
  answer("after a reset, not retained again: cuMemFree of an old block", CU(cuMemFree_v2)(old));
  answer("after a reset, not retained again: cuEventQuery of an old event", CU(cuEventQuery)(event));
  CUcontext again = nullptr;
  prepare(CU(cuDevicePrimaryCtxRetain)(&again, session.device), "cuDevicePrimaryCtxRetain");
  answer("the primary context has the same handle after a reset", again == session.context);
  if (has_id) {
    CU(cuCtxGetId)(again, &id_after);
    answer("the primary context has another id after a reset", id_before != id_after);
  }
  prepare(CU(cuCtxSetCurrent)(again), "cuCtxSetCurrent");
  session.context = again;
  answer("after a reset and a new retain: cuMemFree of an old block", CU(cuMemFree_v2)(old));
  answer("after a reset and a new retain: cuMemAlloc", CU(cuMemAlloc_v2)(&address, 512), CUDA_SUCCESS);
}

/// One part of the device's multiprocessors as a green context.
CUgreenCtx make_green(CUdevice device) {
  CUdevResource all{}, half{}, rest{};
  prepare(CU(cuDeviceGetDevResource)(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  unsigned groups = 1;
  prepare(CU(cuDevSmResourceSplitByCount)(&half, &groups, &all, &rest, 0, all.sm.smCount / 2), "cuDevSmResourceSplitByCount");
  CUdevResourceDesc description = nullptr;
  prepare(CU(cuDevResourceGenerateDesc)(&description, &half, 1), "cuDevResourceGenerateDesc");
  CUgreenCtx green = nullptr;
  prepare(CU(cuGreenCtxCreate)(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate");
  return green;
}

}  // namespace

void ask_contexts(Session& session) {
  group("no current context", [&] { ask_without_context(session); });
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  group("another context", [&] { ask_other_context(session); });
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  group("memory of a destroyed context", [&] { ask_freed_with_context(session); });
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
  group("reset", [&] { ask_reset(session); });
}

void ask_green(Session& session) {
  CUgreenCtx green = make_green(session.device);
  CUcontext context = nullptr, owner = nullptr;
  prepare(CU(cuCtxFromGreenCtx)(&context, green), "cuCtxFromGreenCtx");
  prepare(CU(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
  CUdeviceptr address = 0;
  prepare(CU(cuMemAlloc_v2)(&address, 1 << 20), "cuMemAlloc");
  prepare(CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address), "cuPointerGetAttribute");
  answer("a block allocated under a green context: CONTEXT says",
         owner == session.context ? "the primary"
         : owner == context       ? "the green context"
                                  : "another context",
         "the primary");
  CUevent event = nullptr;
  prepare(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  answer("cuCtxRecordEvent with the green context's handle", CU(cuCtxRecordEvent)(context, event));
  CUstream theirs = nullptr;
  prepare(CU(cuGreenCtxStreamCreate)(&theirs, green, CU_STREAM_NON_BLOCKING, 0), "cuGreenCtxStreamCreate");
  CU(cuCtxSetCurrent)(session.context);
  answer("a green stream with the primary current: cuMemsetD8Async", CU(cuMemsetD8Async)(address, 1, 64, theirs), CUDA_SUCCESS);
  CUdeviceptr ordered = 0;
  const CUresult taken = CU(cuMemAllocAsync)(&ordered, 4096, theirs);
  answer("a green stream with the primary current: cuMemAllocAsync", taken);
  if (taken == CUDA_SUCCESS) answer("a green stream with the primary current: cuMemFreeAsync", CU(cuMemFreeAsync)(ordered, theirs));
  answer("cuCtxRecordEvent with the primary, event made under the green context", CU(cuCtxRecordEvent)(session.context, event));
  const Spin spin;  // the primary's kernel
  group("a green context that ends with work", [&] {
    constexpr std::uint64_t kGreenWork_ns = 20'000'000;
    spin.launch(theirs, kGreenWork_ns);
    const std::uint64_t start = now_ns();
    prepare(CU(cuGreenCtxDestroy)(green), "cuGreenCtxDestroy");
    green = nullptr;
    answer("cuGreenCtxDestroy with 20 ms of work takes nearly as long", now_ns() - start >= kGreenWork_ns / 2);
  });
  if (green != nullptr) prepare(CU(cuGreenCtxDestroy)(green), "cuGreenCtxDestroy");
  answer("the green context is destroyed: cuMemsetD8 on its block", CU(cuMemsetD8_v2)(address, 1, 64), CUDA_SUCCESS);
  answer("the green context is destroyed: cuMemFree of its block", CU(cuMemFree_v2)(address), CUDA_SUCCESS);
}

}  // namespace probe
