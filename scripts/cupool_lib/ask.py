"""`cupool trim` and `cupool dump`: asks a running process through the request word of its live page (pool/observe/live_page.hpp).

The process answers at its next CUDA call; it has no thread of ours that could answer earlier.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from cupool_lib import live_page, locate
from cupool_lib.terminal import fail, printable, put, size

REPORT, TRIM = 1, 2
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


def _ask(descriptor: int, word: int, seconds: float) -> bool:
    """Whether the process has done it within `seconds`."""
    os.pwrite(descriptor, struct.pack("<I", word), _REQUEST_OFFSET)
    until = time.monotonic() + seconds
    while struct.unpack("<I", os.pread(descriptor, 4, _REQUEST_OFFSET))[0] != 0:
        if time.monotonic() >= until:
            return False
        time.sleep(_PAUSE_S)
    return True


def _read(descriptor: int) -> live_page.Page:
    return live_page.parse(os.pread(descriptor, os.fstat(descriptor).st_size, 0))


def _reserved(page: live_page.Page) -> int:
    return sum(device.gauges.get("reserved_bytes", (0, 0))[0] for device in page.devices)


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


def run(word: int, pid: int, seconds: float, folder: Path | None = None) -> int:
    name = "trim" if word == TRIM else "dump"
    try:
        path = _find(pid, locate.live_page_folder() if folder is None else folder)
        descriptor = live_page.open_page(path)
    except (NotThere, OSError, ValueError, live_page.BadPage) as error:
        return fail(f"{name}: {printable(error)}", 1)
    try:
        before = _read(descriptor)
        files = _requested_reports(before)
        if not _ask(descriptor, word, seconds):
            return fail(f"{name}: process {pid} has made no CUDA call for {seconds:g} s; it will do it at its next one", 1)
        after = _read(descriptor)
        if word == TRIM:
            given = max(0, _reserved(before) - _reserved(after))
            put(f"process {pid} gave {size(given)} back and keeps {size(_reserved(after))}\n")
            return 0
        new = [found for found, changed in _requested_reports(after).items() if files.get(found) != changed]
        if not new:
            return fail(f"dump: process {pid} has answered, but left no report (CUPOOL_REPORT is none or stderr, or its folder is not writable)", 1)
        put(f"{max(new, key=lambda found: found.stat().st_mtime_ns)}\n")
        return 0
    except (OSError, live_page.BadPage) as error:
        return fail(f"{name}: {printable(error)}", 1)
    finally:
        os.close(descriptor)
