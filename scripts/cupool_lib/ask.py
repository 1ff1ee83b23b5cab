"""`cupool trim` and `cupool dump`: asks a running process through the request word of its live page (pool/observe/live_page.hpp).

The process answers at its next CUDA call that the library looks at, since it has no thread of ours that could answer earlier. There is one word for all
requests: whoever asks holds a lock on the page until the answer is there, and a request that nobody waits for any more is served first.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path
from typing import Callable

from cupool_lib import live_page, locate
from cupool_lib.terminal import fail, printable, put, size

WORDS = {"dump": 1, "trim": 2}  # by subcommand: LiveRequest of live_page.hpp
_SILENT = "has made no CUDA call that has to do with memory or waits for the GPU (launching kernels does not)"
_REQUEST_OFFSET = 96
_PAUSE_S = 0.02


class NotThere(Exception):
    """No such process under cupool, or not ours."""


def _find(pid: int, folder: Path) -> Path:
    for path in live_page.page_files(folder):
        number, _, ticks = path.name.partition(".")
        if int(number) == pid and live_page.is_alive(pid, int(ticks)):
            return path
    raise NotThere(f"process {pid} has no live page in {folder}: it does not run, is not yours, or has not used device memory under cupool")


def _pending(descriptor: int) -> int:
    """The request that the process has not served yet; 0: none."""
    return struct.unpack("<I", os.pread(descriptor, 4, _REQUEST_OFFSET))[0]


def _is_ours(descriptor: int) -> bool:
    """Takes the lock of those who ask, which is held until the descriptor is closed. (The process itself holds a lock of another kind, by fcntl.)"""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def _wait_for(what: Callable[[], bool], until: float) -> bool:
    while not what():
        if time.monotonic() >= until:
            return False
        time.sleep(_PAUSE_S)
    return True


def _ask(descriptor: int, word: int, seconds: float) -> str:
    """Writes the request and waits for it; empty: it was served within `seconds`, else why not. An earlier request is waited for, never replaced."""
    until = time.monotonic() + seconds
    if not _wait_for(lambda: _is_ours(descriptor), until):
        return f"is still to do what another cupool command has asked for; after {seconds:g} s this was not asked for"
    earlier = _pending(descriptor)
    if earlier not in (0, word) and not _wait_for(lambda: _pending(descriptor) == 0, until):
        return f"{_SILENT} for {seconds:g} s; it is still to do an earlier {_name_of(earlier)}, and this was not asked for"
    os.pwrite(descriptor, struct.pack("<I", word), _REQUEST_OFFSET)
    return "" if _wait_for(lambda: _pending(descriptor) == 0, until) else f"{_SILENT} for {seconds:g} s; it will do it at its next one"


def _read(descriptor: int) -> live_page.Page:
    return live_page.parse(os.pread(descriptor, os.fstat(descriptor).st_size, 0))


def _reserved(page: live_page.Page) -> int:
    return sum(device.gauges.get("reserved_bytes", (0, 0))[0] for device in page.devices)


def _for_graphs(page: live_page.Page) -> int:
    return sum(device.outside.get("graphs", 0) for device in page.devices)


def _requested_reports(page: live_page.Page) -> dict[Path, int]:
    """Files that a request of this process may have made, with their change times."""
    name = page.facts.get("report_path")
    if not isinstance(name, str) or name in ("", "stderr"):
        return {}
    path = Path(name)
    found = {}
    for candidate in path.parent.glob(f"{_escaped(path.stem)}.request*{_escaped(path.suffix)}"):
        found[candidate] = candidate.stat().st_mtime_ns
    return found


def _escaped(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _tell_where(page: live_page.Page, before: dict[Path, int]) -> int:
    """Prints where the new report is, which is not in `before`; returns the exit code."""
    target = page.facts.get("report_path")
    if target == "stderr":
        put(f"process {page.pid} has written its report to its stderr\n")
        return 0
    new = [found for found, changed in _requested_reports(page).items() if before.get(found) != changed]
    if new:
        put(f"{max(new, key=lambda found: found.stat().st_mtime_ns)}\n")
        return 0
    reason = f"{target} cannot be written, see its log" if target else "its CUPOOL_REPORT is none"
    return fail(f"dump: process {page.pid} has answered, but left no report: {reason}", 1)


def _name_of(word: int) -> str:
    return next((name for name, known in WORDS.items() if known == word), "request")


def run(name: str, pid: int, seconds: float, folder: Path | None = None) -> int:
    """`name`: the subcommand, "dump" or "trim". Returns the exit code."""
    try:
        path = _find(pid, locate.live_page_folder() if folder is None else folder)
        descriptor = live_page.open_page(path)
    except (NotThere, OSError, ValueError, live_page.BadPage) as error:
        return fail(f"{name}: {printable(error)}", 1)
    try:
        before = _read(descriptor)
        files = _requested_reports(before)
        if refusal := _ask(descriptor, WORDS[name], seconds):
            ended = not live_page.is_alive(pid, int(path.name.partition(".")[2]))
            return fail(f"{name}: process {pid} {'has ended without an answer' if ended else refusal}", 1)
        after = _read(descriptor)
        if name == "trim":
            graphs = max(0, _for_graphs(before) - _for_graphs(after))
            given = max(0, _reserved(before) - _reserved(after)) + graphs
            of_graphs = f" ({size(graphs)} of it the driver's, kept for CUDA graphs)" if graphs else ""
            put(f"process {pid} gave {size(given)} back{of_graphs} and keeps {size(_reserved(after))}\n")
            return 0
        return _tell_where(after, files)
    except (OSError, live_page.BadPage) as error:
        return fail(f"{name}: {printable(error)}", 1)
    finally:
        os.close(descriptor)
