"""The same probe natively and under the pool: what a program can ask must be answered the same.

DELIBERATE lists the differences that are meant (a free does not wait, a hit succeeds during capture, a free at exit succeeds), and
figures that no program may rely on. Any other is a fault.
"""

from __future__ import annotations

import re
from typing import Any

SERVED = "CUDA_SUCCESS, capture lives"
# (question, what the pool may answer instead, why)
DELIBERATE = [
    (r"cuMem(Alloc|Free) during a .* capture, (same|another) thread", SERVED, "a pool hit succeeds during capture"),
    (r"half of the device is kept for graphs: cuMemAlloc of three quarters", "CUDA_SUCCESS", "what the driver keeps for graphs is trimmed first"),
    (r"distances? of .*", None, "where blocks lie"),
    (r"free memory taken by .*", None, "the pool grows by regions"),
    (r"what a destroyed context held is free again.*", None, "counts what the pool took"),
    (r"cuMemsetD8 on a freed address", None, "an asynchronous error appears later, or never: the region is still mapped"),
    (r"a failed cuMemAlloc(Async)?: what the output holds.*", None, "undefined"),
    (r"handle of a freed block, opened elsewhere", "CUDA_ERROR_INVALID_VALUE", "the driver is asked about a handle that is not its own"),
    (r"(two handles of one block are the same bytes|an interior address gives the block's handle)", None, "the handle is ours"),
    (r"a handle begins with the bytes", None, "the handle is ours"),
    (r"(destructor|exit handler).*: cuMemFree", "CUDA_SUCCESS", "a free while exiting is a success that does nothing"),
    (r"(.*: )?IS_GPU_DIRECT_RDMA_CAPABLE.*", None, "as the region"),
    (r"freed behind running work, allocated again on .*: the same address", None, "where blocks lie"),
    (r"cuMem(Alloc|Free)Async on another stream during a .* capture, .*", SERVED, "a pool hit succeeds during capture"),
    (r"MEMORY_BLOCK_ID differs between two small blocks", True, "a block has no memory in common with another"),
    (r"stream-ordered memory: MAPPING_SIZE of .*", None, "the driver maps a pool's memory by larger pieces"),
    (r"freed by cuMemFreeAsync, .*|double_frees: .*", None, "a second free is refused; the driver may take it and die of it"),
    (r"USED_MEM_CURRENT for a block of .*", None, "a block counts with its rounding to 512 bytes [?]"),
    (r"RESERVED_MEM_CURRENT (after blocks|is a multiple) .*", None, "the pool grows by regions"),
    (r"freed on an idle stream, at once: .*", 0, "what its stream freed counts as free at once"),
    (r"cuMemPoolTrimTo\(0\) after the work: 64 MiB were given back", None, "no pool reserves what is idle, which cuMemGetInfo counts as free"),
    (r"(freed behind|the work is done).*: 64 MiB are still reserved", None, "what is kept is for CUPOOL_RELEASE_THRESHOLD to say"),
]
# (question, why it is not mended yet): shown in the table as open, and no failure. A row that no longer differs on the simulated driver
# fails the tests, so that it is taken out.
OPEN: list[tuple[str, str]] = []


def is_open(sentence: str) -> bool:
    """`sentence`: of differences()."""
    return any(re.match(pattern + ": natively ", sentence) for pattern, _ in OPEN)


def _is_deliberate(question: str, answer: Any) -> bool:
    return any(re.fullmatch(pattern, question) and (allowed is None or answer == allowed) for pattern, allowed, _ in DELIBERATE)


def differences(native: list[dict[str, Any]], pooled: list[dict[str, Any]]) -> list[str]:
    """One sentence per question that the pool answers otherwise, or that only one of the two put."""
    theirs = {one["question"]: one for one in native}
    ours = {one["question"]: one for one in pooled}
    result = []
    for question in list(theirs) + [extra for extra in ours if extra not in theirs]:
        before, now = (side.get(question, {}).get("answer", "(not asked)") for side in (theirs, ours))
        if before != now and not _is_deliberate(question, now):
            result.append(f"{question}: natively {before}, under the pool {now}")
    return result
