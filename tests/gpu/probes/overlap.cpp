// Which calls wait for the GPU: each is made while a stream works on something else for 20 ms. "returned at once" or
// "waited" is told by asking the stream afterwards, not by a threshold on time. Then copies of mapped memory between contexts.
#include "tests/gpu/probes/busy.hpp"
#include "tests/gpu/probes/physical.hpp"

namespace probe {
namespace {

void ask_plain_calls(const Session& session, const Busy& busy) {
  CUdeviceptr address = 0;
  CUevent event = nullptr;
  std::size_t free_bytes = 0, total_bytes = 0;
  prepare(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  busy.ask("cuMemAlloc of 64 MiB", kReturned, [&] { return CU(cuMemAlloc_v2)(&address, 64 << 20); });
  busy.ask("cuMemFree of 64 MiB", kWaited, [&] { return CU(cuMemFree_v2)(address); });
  prepare(CU(cuMemAlloc_v2)(&address, 512), "cuMemAlloc");
  busy.ask("cuMemFree of 512 B", kWaited, [&] { return CU(cuMemFree_v2)(address); });
  busy.ask("cuCtxRecordEvent", kReturned, [&] { return CU(cuCtxRecordEvent)(session.context, event); });
  busy.ask("cuEventQuery", kReturned, [&] {
    const CUresult code = CU(cuEventQuery)(event);
    return code == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : code;
  });
  busy.ask("cuMemGetInfo", kReturned, [&] { return CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes); });
}

void ask_virtual_calls(const Session& session, const Busy& busy) {
  const CUmemAllocationProp properties = physical_properties(session.device);
  Mapping mapping(session.device, 64 << 20, 32);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  prepare(CU(cuMemAddressReserve)(&address, 64 << 20, 0, 0, 0), "cuMemAddressReserve");
  busy.ask("cuMemCreate of 64 MiB", nullptr, [&] { return CU(cuMemCreate)(&handle, 64 << 20, &properties, 0); });
  busy.ask("cuMemMap of 64 MiB", nullptr, [&] { return CU(cuMemMap)(address, 64 << 20, 0, handle, 0); });
  busy.ask("cuMemSetAccess of 64 MiB", nullptr, [&] { return grant(address, 64 << 20, session.device); });
  busy.ask("cuMemUnmap of 64 MiB", nullptr, [&] { return CU(cuMemUnmap)(address, 64 << 20); });
  busy.ask("cuMemUnmap of 32 handles of 2 MiB", nullptr, [&] { return mapping.unmap(); });
  busy.ask("cuMemRelease of 64 MiB", nullptr, [&] { return CU(cuMemRelease)(handle); });
}

/// Unmapping a range and mapping another handle there while a stream works on a neighbour must leave the neighbour's bytes alone.
void ask_neighbour_survives(const Session& session, const Busy& busy) {
  constexpr std::size_t kHalf_bytes = 2 << 20;
  const Memory worked_on(kHalf_bytes);
  prepare(CU(cuMemsetD8Async)(worked_on.address(), 0x5A, kHalf_bytes, busy.stream()), "cuMemsetD8Async");
  Mapping mapping(session.device, kHalf_bytes);
  prepare(mapping.unmap(), "cuMemUnmap");
  unsigned char first = 0;
  prepare(CU(cuStreamSynchronize)(busy.stream()), "cuStreamSynchronize");
  prepare(CU(cuMemcpyDtoH_v2)(&first, worked_on.address() + kHalf_bytes - 1, 1), "cuMemcpyDtoH");
  answer("unmapping elsewhere leaves the bytes that a stream writes alone", first == 0x5A, true);
}

void verify_bytes(const char* question, CUdeviceptr address, unsigned char expected) {
  std::vector<unsigned char> bytes(4096);
  prepare(CU(cuMemcpyDtoH_v2)(bytes.data(), address, bytes.size()), "cuMemcpyDtoH");
  bool right = true;
  for (const unsigned char byte : bytes) right = right && byte == expected;
  answer(question, right, true);
}

/// `unified` is what is assumed of copies that name no context.
void copy_between(const std::string& what, CUcontext from_context, CUdeviceptr from, CUcontext to_context, CUdeviceptr to, CUresult unified) {
  const auto ask = [&](const char* how, CUresult code, CUresult assumed) {
    answer(what + ", " + how, code, assumed);
    if (code == CUDA_SUCCESS) verify_bytes((what + ", " + how + ": the bytes arrive").c_str(), to, 0x3C);
    static_cast<void>(CU(cuMemsetD8_v2)(to, 0, 4096));
  };
  ask("cuMemcpyDtoD", CU(cuMemcpyDtoD_v2)(to, from, 4096), unified);
  ask("cuMemcpy", CU(cuMemcpy)(to, from, 4096), unified);
  ask("cuMemcpyPeer", CU(cuMemcpyPeer)(to, to_context, from, from_context, 4096), CUDA_SUCCESS);
}

/// Work of the current context, which is of another device, on mapped memory of `owner` that its device may not reach.
void ask_from_elsewhere(CUcontext owner, CUdeviceptr mapped) {
  std::vector<unsigned char> bytes(4096, 0x3C);
  answer("mapped memory of another device, cuMemcpyDtoH", CU(cuMemcpyDtoH_v2)(bytes.data(), mapped, bytes.size()), CUDA_ERROR_INVALID_VALUE);
  answer("mapped memory of another device, cuMemcpyHtoD", CU(cuMemcpyHtoD_v2)(mapped, bytes.data(), bytes.size()), CUDA_ERROR_INVALID_VALUE);
  answer("mapped memory of another device, cuMemsetD8", CU(cuMemsetD8_v2)(mapped, 0x3C, 4096), CUDA_ERROR_INVALID_VALUE);
  unsigned flags = 99;
  const CUresult code = CU(cuPointerGetAttribute)(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, mapped);
  if (code == CUDA_SUCCESS) answer("mapped memory of another device, ACCESS_FLAGS", flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
  else answer("mapped memory of another device, ACCESS_FLAGS", code);
  CUDA_MEMCPY3D_PEER shape{};
  shape.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  shape.srcDevice = mapped;
  shape.srcContext = owner;
  shape.dstMemoryType = CU_MEMORYTYPE_HOST;
  shape.dstHost = bytes.data();
  shape.srcPitch = shape.dstPitch = shape.WidthInBytes = bytes.size();
  shape.srcHeight = shape.dstHeight = shape.Height = shape.Depth = 1;
  answer("mapped memory of another device, cuMemcpy3DPeer to the host", CU(cuMemcpy3DPeer)(&shape), CUDA_SUCCESS);
}

void ask_two_contexts(const Session& session) {
  const Mapping mapping(session.device, 2 << 20);
  const Memory plain(1 << 20);
  for (const CUdeviceptr address : {mapping.address(), plain.address()}) prepare(CU(cuMemsetD8_v2)(address, 0x3C, 4096), "cuMemsetD8");
  CUcontext other = nullptr;
  prepare(CU(cuCtxCreate_v2)(&other, 0, session.device), "cuCtxCreate");
  {
    const Memory theirs(1 << 20);
    copy_between("mapped memory to another context of the device", session.context, mapping.address(), other, theirs.address(), CUDA_SUCCESS);
    copy_between("cuMemAlloc memory to another context of the device", session.context, plain.address(), other, theirs.address(), CUDA_SUCCESS);
  }
  prepare(CU(cuCtxDestroy_v2)(other), "cuCtxDestroy");
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
}

/// One handle mapped a second time: what is written by one address is to be read by the other once the work is over (CUDA Programming Guide,
/// virtual aliasing). A page heap could then move what is free in a handle that is in use elsewhere.
void ask_two_addresses(const Session& session, const Busy& busy) {
  constexpr std::size_t kBytes = 4 << 20;
  Mapping mapping(session.device, kBytes);
  CUdeviceptr second = 0;
  prepare(CU(cuMemAddressReserve)(&second, kBytes, 0, 0, 0), "cuMemAddressReserve");
  const CUresult mapped = CU(cuMemMap)(second, kBytes, 0, mapping.handle(), 0);
  answer("cuMemMap of a handle that is mapped elsewhere", mapped);
  if (mapped == CUDA_SUCCESS) {
    answer("cuMemSetAccess of the second address", grant(second, kBytes, session.device));
    prepare(CU(cuMemsetD8Async)(mapping.address() + kBytes / 2, 0x6B, kBytes / 2, busy.stream()), "cuMemsetD8Async");
    prepare(CU(cuStreamSynchronize)(busy.stream()), "cuStreamSynchronize");
    verify_bytes("bytes written by one address are read by the other", second + kBytes - 4096, 0x6B);
    prepare(CU(cuMemsetD8Async)(second, 0x2D, kBytes, busy.stream()), "cuMemsetD8Async");
    answer("cuMemUnmap of the first address while a stream works by the second", mapping.unmap());
    prepare(CU(cuStreamSynchronize)(busy.stream()), "cuStreamSynchronize");
    verify_bytes("… which then has what was written", second, 0x2D);
    prepare(CU(cuMemUnmap)(second, kBytes), "cuMemUnmap");
  }
  prepare(CU(cuMemAddressFree)(second, kBytes), "cuMemAddressFree");
}

void ask_two_devices(const Session& session) {
  int number = 0;
  prepare(CU(cuDeviceGetCount)(&number), "cuDeviceGetCount");
  if (number < 2) return leave_out("copies between two devices", "there is one device");
  const Mapping mapping(session.device, 2 << 20);
  prepare(CU(cuMemsetD8_v2)(mapping.address(), 0x3C, 4096), "cuMemsetD8");
  CUcontext other = nullptr;
  prepare(CU(cuDevicePrimaryCtxRetain)(&other, 1), "cuDevicePrimaryCtxRetain");
  prepare(CU(cuCtxSetCurrent)(other), "cuCtxSetCurrent");
  {
    const Memory theirs(1 << 20);
    copy_between("mapped memory to another device, no peer access", session.context, mapping.address(), other, theirs.address(),
                 CUDA_ERROR_INVALID_VALUE);
    ask_from_elsewhere(session.context, mapping.address());
  }
  prepare(CU(cuCtxSetCurrent)(session.context), "cuCtxSetCurrent");
}

}  // namespace

void ask_overlap(Session& session) {
  const Busy busy;
  ask_plain_calls(session, busy);
  group("virtual memory", [&] { ask_virtual_calls(session, busy); });
  group("a neighbour's bytes", [&] { ask_neighbour_survives(session, busy); });
  group("two addresses", [&] { ask_two_addresses(session, busy); });
}

void ask_vmm_copies(Session& session) {
  group("two contexts", [&] { ask_two_contexts(session); });
  group("two devices", [&] { ask_two_devices(session); });
}

}  // namespace probe
