#!/usr/bin/env python3
"""A real UCX under the library: its memory hooks patch our entry points, and it hears of every block that comes and goes.

    pip download --no-deps libucx-cu12 && python3 -m zipfile -e libucx_cu12-*.whl UCX
    tests/preload/events_of_ucx.py --build build --ucx UCX

Run by hand, on the simulated driver. Seen with UCX 1.22. Natively UCX cannot patch the simulated driver (its compiler's prologues are
not among those that UCX moves), so there is nothing to compare with. Exit 77, with the reason, when UCX is not there.
"""
from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
MEM_TYPE_ALLOC, MEM_TYPE_FREE = 1 << 20, 1 << 21  # ucm/api/ucm.h
Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class MemType(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("size", ctypes.c_size_t)]


def program(folder: Path) -> int:
    """What runs under the library: 0 when UCX heard of everything."""
    heard = []

    def note(kind: int, event: int, _argument: int) -> None:
        if kind in (MEM_TYPE_ALLOC, MEM_TYPE_FREE):
            block = MemType.from_address(event)
            heard.append((kind == MEM_TYPE_FREE, block.address, block.size))

    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    codes = [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)]
    for name in ("libucs.so.0", "libucm.so.0"):
        ucm = ctypes.CDLL(str(folder / name), mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
    ctypes.CDLL(str(folder / "ucx" / "libucm_cuda.so.0"), mode=os.RTLD_LAZY)
    handler = Handler(note)
    installed = ucm.ucm_set_event_handler(MEM_TYPE_ALLOC | MEM_TYPE_FREE, 0, handler, None)
    wanted = []
    for bytes_ in (1000, 1 << 20, 100_000_000):
        address = ctypes.c_uint64()
        codes.append(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(bytes_)))
        codes.append(driver.cuMemFree_v2(address))
        codes.append(driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(bytes_), None))
        wanted += [(False, bytes_), (True, bytes_)] * 2
        codes.append(driver.cuMemFreeAsync(address, None))
    ucm.ucm_unset_event_handler(MEM_TYPE_ALLOC | MEM_TYPE_FREE, handler, None)
    got = [(is_free, size) for is_free, _, size in heard]
    print(f"hooks installed: {installed}, driver's codes: {set(codes)}, heard {len(heard)} of {len(wanted)} events")
    if installed != 0 or got != wanted or any(codes):
        print(f"wanted {wanted}\ngot    {got}")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--ucx", type=Path, required=True)
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    libraries = next((path.parent for path in sorted(given.ucx.rglob("libucm.so.0"))), None)
    if libraries is None:
        print(f"SKIPPED no libucm.so.0 below {given.ucx}")
        return SKIPPED
    if given.program:
        return program(libraries)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_", "LD_", "UCX_"))}
    build = given.build.resolve()
    environment.update(LD_PRELOAD=str(build / "libcupool.so"), LD_LIBRARY_PATH=f"{build / 'sim'}:{libraries.resolve()}", CUSIM_MEMORY="8GiB",
                       CUPOOL_REPORT="none")
    command = [sys.executable, __file__, "--program", "--ucx", str(given.ucx.resolve())]
    return subprocess.run(command, env=environment, timeout=120, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
