"""Every difference that the transparency battery may find, with its reason. Nothing else may differ.

DESIGN section 4 names the deliberate ones. An entry that never occurs under one of its policies fails the test: it is stale.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass
class Accepted:
    """A change of one part of a line: `native` became `ours` (whole tokens, several when more or fewer are printed). With
    `consequences`, what comes after it in the line may differ as well."""

    reason: str
    policies: frozenset[str]
    native: str
    ours: str
    symbols: str = ".*"
    situations: str = ".*"
    cases: str = ".*"
    consequences: bool = False
    seen: set[str] = field(default_factory=set)

    def covers(self, key: tuple[str, str, str], native: str, ours: str) -> bool:
        patterns = zip((self.symbols, self.situations, self.cases, self.native, self.ours), (*key, native, ours))
        return all(re.fullmatch(pattern, text) for pattern, text in patterns)


def on(*policies: str) -> frozenset[str]:
    return frozenset(policies)


SERVED = on("grow", "preallocate", "limit", "immediate")  # blocks are deferred, or free at once, and stream-ordered calls are ours
POOLED = SERVED | on("sync")
ASYNC = on("async")
DEFERRED = SERVED | ASYNC
ALL = POOLED | ASYNC
COUNTED = on("native_ipc", "platform")
CAPTURED = "captured (global|thread|elsewhere)|capturing global"
ASYNC_FREE = "cuMemFreeAsync(_ptsz)?"

DELIBERATE = [
    Accepted("the limit is for what the program takes: code of modules still fits", on("limit"), "code=2", "code=0", symbols="cuModuleLoad.*",
             cases="full, then .*"),
    Accepted("the limit is what the device has", on("limit"), "(total|bytes)=1073741824", "(total|bytes)=943718400",
             symbols="cuMemGetInfo_v2|cuDeviceTotalMem_v2"),
    Accepted("the limit is what the device has", on("limit"), "free GiB/8=7", "free GiB/8=6", symbols="cuMemGetInfo_v2"),
    # The first hundred small blocks come from memory that is there; on segments they are the driver's, whose memory outlives a created context.
    Accepted("an asynchronous error appears at the next real driver call", on("grow", "sync"), r"failed=100", r"failed=\d+", symbols="cuMemPoolCreate",
             situations="broken", consequences=True),
    Accepted("a pool hit succeeds during capture, and a miss is looked for all the same", POOLED, r"failed=100", r"failed=\d+", symbols="cuMemPoolCreate",
             situations=CAPTURED, consequences=True),
    Accepted("a free does not block the host", DEFERRED, r"waited=\d+", r"waited=0"),
    Accepted("a pool hit succeeds during capture, and a miss is looked for all the same", ALL, r"code=900( .*)?", r"code=[012]( .*)?",
             situations=CAPTURED, consequences=True),
    Accepted("the same, in a capture of the case's own", ALL, r"code=900", r"code=0", symbols="cuStreamBegin(Rec|C)apture.*", cases="with frees inside",
             consequences=True),
    Accepted("where blocks lie in the pieces of 2 MiB that the driver maps", POOLED - on("immediate", "limit"), r"18=(0:)?\d+", r"18=(0:)?\d+", symbols="cuPointerGetAttributes?"),
    Accepted("where blocks lie in the pieces of 2 MiB that the driver maps", ALL, r"19=.*", r"19=.*", symbols="cuPointerGetAttributes?"),
    Accepted("an asynchronous error appears at the next real driver call", ALL, r"code=700( .*)?", r"code=0( .*)?", situations="broken",
             consequences=True),
]

# [?] What a real driver says is not established; the simulated one guesses.
NOT_ESTABLISHED = [
    Accepted("[?] a handle of one's own memory that is freed", POOLED - on("grow", "sync"), "code=201", "code=1", symbols="cuIpcOpenMemHandle(_v2)?",
             cases="of what is freed"),
]

SYNC_WAITS = [
    # Natively a free waits for its block's context alone. Ours waits for all of the device and of linked ones.
    Accepted("CUPOOL_FREE=sync waits for every context of the device", on("sync"), r"waited=0", r"waited=1000000", situations="busy"),
]

# What follows from a part's design: DESIGN section 5 (segments) and 6 (captures), and from what a limit can be asked.
CONSEQUENCES = [
    Accepted("[?] an array over the limit that the driver would refuse for its shape: no harmless call tells", on("limit"), "code=1", "code=2",
             symbols="cu(Mipmapped)?Array.*Create.*"),
    Accepted("while something captures, what was freed is not given back to the driver", ALL - on("limit"), "code=0", "code=2", symbols="cuModuleLoad.*", situations=CAPTURED,
             cases="full, then all freed"),
    Accepted("the same", on("grow", "sync", "async"), "code=0", "code=2", symbols="cuModuleLoad.*", situations=CAPTURED, cases="full, then one of many freed"),
    Accepted("a block on pages may begin within a page of the host, or lie in two handles: no descriptor, as natively of mapped memory", on("grow", "preallocate", "sync"),
             "code=0", "code=1", symbols="cuMemGetHandleForAddressRange", cases="(stream|plain pool) block.*", consequences=True),
    Accepted("who rounds a block's address down to host pages names another block's, or a freed one's", on("grow", "preallocate", "sync"), "code=1", "code=0",
             symbols="cuMemGetHandleForAddressRange", cases="small, (4096|1048576)", consequences=True),
    Accepted("a memset of another device's memory, without peer access, is refused where that lies on pages: known to be open", on("grow", "sync"), "code=0", "code=1",
             symbols="cuMemset.*", cases="block of other device", consequences=True),
    Accepted("a copy between contexts that names another context than the block's is refused where that lies on pages of another device: known to be open",
             on("grow", "sync"), "code=0", "code=1", symbols="cuMemcpyPeer(_ptds)?", cases=".*other device.*", consequences=True),
    Accepted("segments: a hole between live blocks cannot go back to the driver; pages can be remapped", POOLED - on("limit", "grow", "sync"), "code=0", "code=2",
             symbols="cuModuleLoad.*", cases="full, then one of many freed"),
]

# `async`: plain blocks lie in the driver's default pool, and their idle memory stays there.
DRIVERS_POOL = [
    Accepted("memory of a pool is not shared by the legacy calls, and says so", ASYNC, "(ipc|10)=(0:)?1", "(ipc|10)=(0:)?0"),
    Accepted("memory of a pool is not for GPUDirect RDMA, and says so", ASYNC, "(rdma|15)=(0:)?1", "(rdma|15)=(0:)?0"),
    Accepted("memory of a pool is not shared by the legacy calls", ASYNC, ".*code=0", ".*code=1", symbols="cuIpc(Get|Open)MemHandle.*", consequences=True),
    Accepted("the default pool is told to keep what it has", ASYNC, "threshold=0", "threshold=18446744073709551615", symbols="cuMemPoolGetAttribute"),
    Accepted("plain blocks are used memory of the default pool", ASYNC, r"used( high)?=\d+", r"used( high)?=\d+", symbols="cuMemPool[GS]etAttribute"),
    Accepted("devices in use reach each other's default pools, as they can copy from cuMemAlloc memory", ASYNC, "(access|16)=(0:)?0", "(access|16)=(0:)?3"),
    Accepted("what the pool has idle serves the next block", ASYNC, r"(taken|back)=67108864", r"(taken|back)=\d+", symbols="cuMemGetInfo_v2"),
    Accepted("what the pool has idle serves the next block; natively no more was taken", ASYNC, "back=0", r"back=\d+", symbols="cuMemGetInfo_v2"),
]

# Legacy handles exist for cuMemAlloc memory only: under `auto` this program, which imports the call, would be on segments.
PAGED = [
    Accepted("a breach of the limit by an array is not asked of the driver: a broken context's error comes before the shape's", on("limit"), "code=1", "code=700",
             symbols="cuMipmappedArrayCreate", situations="broken", consequences=True),
    Accepted("CUPOOL_BACKING=pages: memory on mapped pages cannot be shared by the legacy calls, and says so", on("grow", "sync"), ".*code=0", ".*code=801",
             symbols="cuIpc(Get|Open)MemHandle.*", consequences=True),
]

# The runtime's battery meets fewer of them.
RUNTIME = [
    Accepted("a pool hit succeeds during capture", POOLED, r"code=900( .*)?", r"code=[0-2]( .*)?", situations=CAPTURED, consequences=True),
    Accepted("memory that is freed stays mapped: a program's use of it is not refused", POOLED, "code=1", "code=0", symbols="cudaMemset",
             cases="freed", consequences=True),
    Accepted("the limit is what the device has", on("limit"), "total=1073741824", "total=943718400", symbols="cudaMemGetInfo", consequences=True),
    Accepted("a breach of the limit is answered before the driver has looked at the other arguments", on("limit"), "code=1", "code=2",
             symbols="cudaMallocFromPoolAsync", situations="first call", consequences=True),
    Accepted("CUPOOL_BACKING=pages: memory on mapped pages cannot be shared by the legacy calls, and says so", on("grow", "sync"), r"(code|last)=0", r"(code|last)=801",
             symbols="cudaIpc(Get|Open)MemHandle", consequences=True),
]

ACCEPTED = {"battery": DELIBERATE + NOT_ESTABLISHED + SYNC_WAITS + CONSEQUENCES + DRIVERS_POOL + PAGED, "battery_runtime": RUNTIME, "battery_runtime_per_thread": RUNTIME}
