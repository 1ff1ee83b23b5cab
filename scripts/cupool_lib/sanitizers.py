"""What a program that is built with a sanitizer needs so that it starts under a preload.

AddressSanitizer's shared runtime (gcc's always, clang's with -shared-libasan) ends the program when another library comes before it. Our library
replaces nothing that it intercepts, and it still comes before libc: so its check goes, rather than that every child of the program gets the runtime
preloaded too. Source: compiler-rt, asan_linux.cpp (verify_asan_link_order). ThreadSanitizer and a runtime inside the program check nothing.
"""

from __future__ import annotations

import os
import shutil

from cupool_lib import elf
from cupool_lib.handover import Change

_RUNTIMES = ("libasan.so.", "libclang_rt.asan")
_CHECK = "verify_asan_link_order"


def changes(command: list[str], environment: dict[str, str]) -> list[Change]:
    """Empty for every other program, and where the user has decided by the option."""
    given = environment.get("ASAN_OPTIONS", "")
    preloads = environment.get("LD_PRELOAD", "").replace(":", " ").split()  # ours goes before them
    is_preloaded = any(os.path.basename(entry).startswith(_RUNTIMES) for entry in preloads)
    if _CHECK in given or not (is_preloaded or _needs_runtime(command[0], environment)):
        return []
    value = f"{_CHECK}=0"
    return [Change("ASAN_OPTIONS", f"{given}:{value}" if given else value, "AddressSanitizer, which wants to be the first library of the program")]


def _needs_runtime(program: str, environment: dict[str, str]) -> bool:
    path = shutil.which(program, path=environment.get("PATH", os.defpath))
    if path is None or not os.path.isfile(path):
        return False
    try:
        return any(name.startswith(_RUNTIMES) for name in elf.read(path).needed)
    except (elf.NotElf, OSError):
        return False
