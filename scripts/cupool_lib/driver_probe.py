"""Asks the CUDA driver what it is and what its devices can do; prints one line of JSON.

A program of its own, so that a driver that hangs or crashes takes nothing with it: run it under a timeout. Makes one
context, to ask for free memory; allocates 1 MiB with --allocate, nothing otherwise. Imports nothing of cupool's.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

_VMM_ATTRIBUTE, _MAJOR_ATTRIBUTE, _MINOR_ATTRIBUTE, _INTEGRATED_ATTRIBUTE = 102, 75, 76, 18


def _file_of(library: ctypes.CDLL) -> str:
    """The file that the loader chose for libcuda.so.1."""
    address = ctypes.cast(library.cuInit, ctypes.c_void_p).value or 0
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            bounds, _, rest = line.partition(" ")
            start, end = (int(part, 16) for part in bounds.split("-"))
            if start <= address < end and "/" in rest:
                return rest[rest.index("/"):].strip()
    return ""


def _error_name(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    if library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) == 0 and text.value:
        return f"{text.value.decode()} ({code})"
    return f"error {code}"


def _attribute(library: ctypes.CDLL, attribute: int, device: ctypes.c_int) -> int | None:
    value = ctypes.c_int()
    return value.value if library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0 else None


def _device(library: ctypes.CDLL, ordinal: int) -> dict:
    device, name, total = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    code = library.cuDeviceGet(ctypes.byref(device), ordinal)
    if code != 0:
        return {"ordinal": ordinal, "error": _error_name(library, code)}
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    major, minor = (_attribute(library, attribute, device) for attribute in (_MAJOR_ATTRIBUTE, _MINOR_ATTRIBUTE))
    return {"ordinal": ordinal, "name": name.value.decode("utf-8", "replace"), "total_bytes": total.value,
            "compute_capability": f"{major}.{minor}", "vmm": _attribute(library, _VMM_ATTRIBUTE, device) == 1,
            "integrated": _attribute(library, _INTEGRATED_ATTRIBUTE, device) == 1}


def _in_context(library: ctypes.CDLL, action):
    """`action()` with device 0's primary context current; None where there is no context."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuDeviceGet(ctypes.byref(device), 0) or library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return None
    library.cuCtxSetCurrent(context)
    result = action()
    library.cuDevicePrimaryCtxRelease_v2(device)
    return result


def _free_bytes(library: ctypes.CDLL) -> int | None:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    return None if library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) else free.value


def _allocate(library: ctypes.CDLL) -> int:
    """Allocates and frees 1 MiB; the CUresult."""
    address = ctypes.c_uint64()
    code = library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))
    return code or library.cuMemFree_v2(address)


def probe(allocate: bool) -> dict:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"usable": False, "found": False, "reason": f"libcuda.so.1 cannot be loaded ({error})"}
    facts: dict[str, Any] = {"usable": False, "found": True, "path": _file_of(library), "devices": [], "simulated": hasattr(library, "cusim_reset")}
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) == 0:
        facts["version"] = version.value
    code = library.cuInit(0)
    if code != 0:
        return {**facts, "reason": f"cuInit answers {_error_name(library, code)}"}
    number = ctypes.c_int()
    code = library.cuDeviceGetCount(ctypes.byref(number))
    if code != 0 or number.value == 0:
        return {**facts, "reason": "there is no device" if code == 0 else f"cuDeviceGetCount answers {_error_name(library, code)}"}
    facts["devices"] = [_device(library, ordinal) for ordinal in range(number.value)]
    facts["device"] = facts["devices"][0].get("name", "")
    facts["free_bytes"] = _in_context(library, lambda: _free_bytes(library))
    if facts["free_bytes"] is None:
        return {**facts, "reason": "device 0 gives no context"}
    code = _in_context(library, lambda: _allocate(library)) if allocate else 0
    if code != 0:
        return {**facts, "reason": f"cuMemAlloc or cuMemFree answers {_error_name(library, code)}" if code else "no context"}
    return {**facts, "usable": True}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe("--allocate" in sys.argv[1:])) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the driver's own exit handlers are not this program's business
