#!/usr/bin/env python3
"""Python's own ways to make processes, with the driver through ctypes. Children end by os._exit, as multiprocessing does it: whoever may use CUDA
and did leaves a report of its own, helper processes leave nothing, and a fork of a process that used CUDA is refused as natively.

//! pages_of_children
//! check all(r["process"]["exit"]["code"] == 0 for r in reports.values()) and not any("resource_tracker" in " ".join(r["process"]["command"]) for r in reports.values())
//! case fork
//! args fork children
//! check len(reports) == 3 and sorted(r["devices"][0]["counters"]["allocations"] for r in reports.values()) == [1, 2, 2]
//! case fork_after_use
//! args fork parent
//! check len(reports) == 1 and c["allocations"] == 2
//! case data_workers
//! args fork workers
//! check len(reports) == 1 and c["allocations"] == 2
//! case spawn
//! args spawn parent
//! check len(reports) == 3 and c["allocations"] == 2
//! case forkserver
//! args forkserver parent
//! check len(reports) == 3 and c["allocations"] == 2
"""
import ctypes
import multiprocessing
import sys


def use_cuda(blocks: int) -> list:
    """Allocates `blocks` blocks; the codes of the calls."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    codes = [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)]
    for _ in range(blocks):
        codes.append(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(100000)))
    return codes


def child(what: str, queue) -> None:
    queue.put(sum(range(1000)) if what == "workers" else use_cuda(2))


def main() -> None:
    method, what = sys.argv[1:3]
    making = multiprocessing.get_context(method)
    if what != "children":
        print("parent before", use_cuda(1))
    sys.stdout.flush()
    queue = making.SimpleQueue()
    children = [making.Process(target=child, args=(what, queue)) for _ in range(2)]
    for process in children:
        process.start()
    for process in children:
        process.join()
        print("child", process.exitcode, queue.get())
    print("parent", use_cuda(1))


if __name__ == "__main__":
    main()
