"""Which errors are injected into which driver call, and why these. The first row whose pattern matches the symbol counts.

Codes are what the documentation lists for the call, what other calls of its kind are known to answer, and what earlier work can make
any call answer. "sticky" also breaks the context that is current, as an illegal access does.
"""
from __future__ import annotations

import re

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE, INVALID_CONTEXT = 0, 1, 2, 3, 100, 201
INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS, LAUNCH_FAILED, NOT_PERMITTED, NOT_SUPPORTED = 400, 600, 700, 719, 800, 801
SYSTEM_NOT_READY, CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, UNKNOWN = 802, 900, 901, 999
NO_PEER_ACCESS = 217
STICKY = "sticky"

# What a call can answer because of earlier work, whoever makes it.
OF_EARLIER_WORK = {ILLEGAL_ADDRESS, LAUNCH_FAILED}

CODES = [
    ("cuInit|cuDriverGetVersion|cuDeviceGetCount", (NOT_INITIALIZED, NO_DEVICE, SYSTEM_NOT_READY, UNKNOWN),
     "the driver or the fabric is not up yet; devices are hidden"),
    ("cuDevice(Get|GetName|GetUuid.*|GetAttribute|TotalMem.*|CanAccessPeer|GetDevResource)|cuDevSm.*|cuDevResource.*", (INVALID_VALUE, NOT_SUPPORTED, UNKNOWN),
     "an old or partial driver; vGPU and WSL leave questions unanswered"),
    ("cuDevicePrimaryCtx(Retain|Release.*|Reset.*|GetState)|cu(Ctx|GreenCtx)(Create.*|Destroy.*)", (OUT_OF_MEMORY, INVALID_CONTEXT, UNKNOWN, STICKY),
     "a context takes memory; its end may meet what its work has done"),
    ("cuCtx(Get|Push|Pop|Set).*|cuCtxFromGreenCtx", (NOT_INITIALIZED, INVALID_CONTEXT, UNKNOWN, STICKY), "they fail only when nothing works, or a context has died"),
    ("cuMemAlloc.*|cuMemCreate|cuArrayCreate.*|cuMemHost(Alloc|Register).*", (OUT_OF_MEMORY, NOT_PERMITTED, NOT_SUPPORTED, UNKNOWN, STICKY),
     "memory that is not there; not permitted in a host function or a capture; kinds that a device lacks"),
    ("cuMemFree.*|cuMemRelease|cuMemUnmap|cuArrayDestroy|cuMemHostUnregister|cuMemPoolDestroy", (INVALID_VALUE, NOT_PERMITTED, UNKNOWN, STICKY),
     "refused frees keep their memory"),
    ("cuEventQuery", (NOT_READY, INVALID_HANDLE, NOT_PERMITTED, CAPTURE_UNSUPPORTED, UNKNOWN, STICKY), "still running, captured, gone, or the messenger of a broken context"),
    ("cu(Event|CtxRecord|CtxWait).*", (OUT_OF_MEMORY, INVALID_HANDLE, NOT_SUPPORTED, CAPTURE_UNSUPPORTED, UNKNOWN, STICKY),
     "events are memory too; recording and waiting are refused while something captures"),
    ("cuStreamCreate.*", (OUT_OF_MEMORY, NOT_PERMITTED, UNKNOWN, STICKY), "a stream takes memory"),
    ("cu(Stream|CtxSynchronize|Graph|Thread).*", (INVALID_VALUE, OUT_OF_MEMORY, NOT_PERMITTED, CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, UNKNOWN, STICKY),
     "captures, graphs that need memory, streams that are gone"),
    ("cuMem(Map|SetAccess|AddressReserve|AddressFree|GetAllocationGranularity)|cuMemPool.*|cuDevice.*Mem.*", (INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED, UNKNOWN, STICKY),
     "no virtual memory management, no pools, no room for page tables"),
    ("cuIpc.*|cuCtx.*PeerAccess", (INVALID_CONTEXT, OUT_OF_MEMORY, NOT_SUPPORTED, UNKNOWN, STICKY), "containers and platforms without it"),
    (".*", (INVALID_VALUE, OUT_OF_MEMORY, UNKNOWN, STICKY), "anything else that the workload or the pool calls"),
]


# Once is plausible, for ever is not: what was pushed can be popped, a capture that has begun can be ended, what is mapped can be unmapped, and
# a handle that nothing maps can be released (else its memory is nobody's, and whoever needs it next finds none: that is the driver's doing).
NOT_FOR_EVER = re.compile(r"cuStreamEndCapture|cuMemUnmap|cuMemRelease|cuCtxPopCurrent.*|cuCtxGetCurrent|cuCtxSetCurrent|cuDriverGetVersion")


def codes_for(symbol: str) -> tuple:
    return next(codes for pattern, codes, _ in CODES if re.fullmatch(pattern, symbol))


# Calls that take memory: OUT_OF_MEMORY is an answer of theirs.
TAKES_MEMORY = re.compile(r"cuMem(Alloc|Create|HostAlloc|HostRegister|PoolCreate).*|cuArrayCreate.*|cu(Ctx|GreenCtx|Stream|Event)Create.*|cuModuleLoad.*"
                          r"|cuDevicePrimaryCtxRetain|cuGraph(Instantiate|Launch|Upload).*|cuCtx(SetLimit|EnablePeerAccess)")
# What nobody may begin without a note of it, for which there may be no host memory.
NEEDS_HOST_MEMORY = re.compile(r"cuStreamBeginCapture.*|cuCtxFromGreenCtx|cuMemPoolSetAccess|cuIpc(Get|Open)MemHandle.*")
# Without them nobody knows when work is over.
TELLS_OF_WORK = re.compile(r"cuEvent(Create|Query|Record|Synchronize)|cuCtxRecordEvent|cuCtx(Push|Pop)Current.*")
# Where blocks lie in the driver's pool (`async`), a device that cannot be given access to that cannot be a peer: said when it is enabled.
POOL_ACCESS = re.compile(r"cuMemPoolSetAccess|cuDeviceGetDefaultMemPool")
# Calls that are one to the program: the driver's answer to one of them may be passed on by another.
FAMILIES = [re.compile(r"cuMemAlloc(_v2|Pitch.*|Async.*|FromPool.*)"), re.compile(r"cuMemFree(_v2|Async.*)"),
            re.compile(r"cuDevicePrimaryCtxRetain|cuGreenCtxCreate"),
            re.compile(r"cuMemPoolSetAccess|cuCtxEnablePeerAccess")]  # where there is no peer access the driver's pools are refused it too


def is_same_call(one: str, other: str) -> bool:
    return one == other or any(family.fullmatch(one) and family.fullmatch(other) for family in FAMILIES)
