"""What the tests of scripts/ share: where things are, how to run the command, a report and a live page to work on."""

from __future__ import annotations

import copy
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CUPOOL = ROOT / "scripts" / "cupool"
BUILD = Path(os.environ.get("TEST_BUILD_FOLDER", ROOT / "build"))
LIBRARY = BUILD / "libcupool.so"
SIMULATOR = BUILD / "sim"
HAS_LIBRARY = LIBRARY.is_file() and (SIMULATOR / "libcuda.so.1").exists()
# Where only scripts are tested, any library that does nothing will do.
PRELOAD = LIBRARY if LIBRARY.is_file() else Path("/lib/x86_64-linux-gnu/libdl.so.2")

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))


def clean_environment(**extra: str) -> dict[str, str]:
    """This environment without anything of cupool's, of the simulator's or of the loader's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUPOOL_", "CUSIM_", "LD_", "NO_COLOR"))}
    return {**kept, **extra}


def simulator_environment(**extra: str) -> dict[str, str]:
    return clean_environment(**{"LD_LIBRARY_PATH": str(SIMULATOR), "CUSIM_MEMORY": "8GiB", **extra})


def cupool(*arguments: object, env: dict | None = None, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(CUPOOL), *map(str, arguments)], env=clean_environment() if env is None else env, text=True,
                          capture_output=True, check=False, timeout=120, **options)


def run_arguments(*command: object) -> list[str]:
    """`cupool run` with the library under test, around `command`."""
    return [str(CUPOOL), "run", "--library", str(PRELOAD), "--report", "none", "--", *map(str, command)]


def sample_report() -> dict:
    """A valid report of a process that ran out of memory."""
    return copy.deepcopy(json.loads((Path(__file__).parent / "sample_report.json").read_text(encoding="utf-8")))


def paged_report() -> dict:
    """The same memory in four physical handles: one holds nothing, one holds a block and 1 GiB that is stranded beside it."""
    report, gib = sample_report(), 1 << 30
    device = report["devices"][0]
    start = device["regions"][0]["address"]

    def tier(handle_bytes: int, handles: int, empty_bytes: int = 0, stranded_bytes: int = 0) -> dict:
        return {"handle_bytes": handle_bytes, "handles": handles, "mapped_bytes": handles * handle_bytes, "unmapped_bytes": 0, "empty_bytes": empty_bytes,
                "pinned_bytes": 0, "stranded_bytes": stranded_bytes}

    device["backing"] = "pages"
    device["counters"].update(mapped_bytes={"current": 8 * gib, "peak": 8 * gib}, quarantined_bytes={"current": 3 * gib, "peak": 3 * gib}, remaps=17,
                              moved_bytes=5 * gib, vmm_calls=1234, vmm_ns=56_000_000)
    device["pages"] = {
        "page_bytes": 2 << 20, "tiers": [tier(gib, 2, empty_bytes=gib), tier(2 * gib, 1), tier(4 * gib, 1, stranded_bytes=gib)],
        "reservations": [{"address": start, "bytes": 64 * gib, "vacant_bytes": 53 * gib, "quarantined_bytes": 3 * gib}],
        "handle_columns": ["address", "bytes", "free_bytes", "state"],
        "handles": [[start, 2 * gib, 0, "used"], [start + 2 * gib, gib, gib, "empty"], [start + 3 * gib, 4 * gib, gib, "used"], [start + 7 * gib, gib, 0, "used"]]}
    device["pinned_by"] = []
    device["fragmentation"].update(inactive_split_bytes=gib)
    device["ledger"].update(free_releasable=gib, free_pinned=gib)
    return report


class Files(unittest.TestCase):
    """Tests of what reads a report: `put` makes one, of text, bytes or what JSON has."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.path = Path(holder.name) / "report.json"

    def put(self, content: object) -> Path:
        if isinstance(content, bytes):
            self.path.write_bytes(content)
        else:
            self.path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return self.path


COUNTERS = (("live_bytes", "gauge"), ("requested_bytes", "gauge"), ("reserved_bytes", "gauge"), ("deferred_bytes", "gauge"),
            ("live_blocks", "gauge"), ("allocations", "total"), ("frees", "total"), ("failed_allocations", "total"),
            ("native_fallbacks", "total"), ("foreign_frees", "total"))
CALLS = ("cuMemAlloc_v2", "cuMemFree_v2", "cuEventQuery")
FRAGMENTATION = ("free_bytes", "largest_free_bytes", "inactive_split_bytes", "at_peak_free_bytes", "at_peak_largest_free_bytes",
                 "at_peak_live_bytes", "at_peak_requested_bytes", "at_peak_reserved_bytes", "largest_free_remapped_bytes",
                 "at_peak_largest_free_remapped_bytes", "at_peak_inactive_split_bytes")
SHARDS = ("allocations", "frees", "live_bytes", "live_blocks")
OUTSIDE = ("arrays", "program_vmm", "managed", "host", "graphs", "mempools")
MIB = 1 << 20


def device_slot(stride: int, shards: tuple[dict[str, int], ...] = (), **numbers: int) -> bytes:
    """One device that holds 64 MiB, of which 30 MiB are live, with more or other numbers by name; `shards`: what threads have not told yet."""
    values = {"live_bytes": 30 * MIB, "requested_bytes": 29 * MIB, "reserved_bytes": 64 * MIB, "deferred_bytes": 4 * MIB, "live_blocks": 3,
              "allocations": 10, "frees": 7, "free_bytes": 30 * MIB, "largest_free_bytes": 20 * MIB, "largest_free_remapped_bytes": 20 * MIB,
              "inactive_split_bytes": 10 * MIB, "at_peak_live_bytes": 40 * MIB, "at_peak_requested_bytes": 40 * MIB,
              "at_peak_reserved_bytes": 64 * MIB, "at_peak_free_bytes": 24 * MIB, "at_peak_largest_free_bytes": 24 * MIB,
              "at_peak_largest_free_remapped_bytes": 24 * MIB, "cuMemAlloc_v2": 1, "arrays": MIB, **numbers}
    out = struct.pack("<Ii40s128s16s16sQQQQ", 1, 0, b"GPU-0123", b"Test GPU", b"grow", b"segments", 1 << 30, 0, 900 * MIB, 5)
    for name, kind in COUNTERS:
        current = values.get(name, 0)
        out += struct.pack("<QQ", current, values.get(name + "_peak", current + MIB)) if kind == "gauge" else struct.pack("<Q", current)
    for name in CALLS + FRAGMENTATION + OUTSIDE:
        out += struct.pack("<Q", values.get(name, 0))
    for shard in shards:
        out += b"".join(struct.pack("<Q", shard.get(name, 0) % 2**64) for name in SHARDS)
    return out.ljust(stride, b"\0")


def live_page(pid: int, start_ticks: int, facts: dict, state: int = 1, oom_count: int = 0, devices: list[bytes] | None = None,
              unpooled: tuple[str, ...] = ("cuMemAllocAsync",)) -> bytes:
    """A page as pool/observe/live_page.hpp documents it, laid out in an order of our own: readers go by the offsets."""
    stride, slots = 1024, 4
    devices = [device_slot(stride)] if devices is None else devices
    texts = {"counter": "".join(f"{name} {kind} bytes\n" for name, kind in COUNTERS), "calls": "".join(f"{name}\n" for name in CALLS),
             "json": json.dumps(facts), "fragmentation": "".join(f"{name}\n" for name in FRAGMENTATION),
             "outside": "".join(f"{name}\n" for name in OUTSIDE), "shards": "".join(f"{name}\n" for name in SHARDS)}
    body, places = b"", {}
    for key, text in texts.items():
        places[key] = (160 + len(body), len(text.encode()))
        body += text.encode()
    body += b"\0" * (-len(body) % 64)
    devices_at = 160 + len(body)
    body += b"".join(devices).ljust(stride * slots, b"\0")
    unpooled_at = 160 + len(body)
    body += b"".join(struct.pack("<I60s", 2, name.encode()) for name in unpooled).ljust(64 * slots, b"\0")
    counters_in = 240
    calls_in = counters_in + sum(16 if kind == "gauge" else 8 for _, kind in COUNTERS)
    fragmentation_in = calls_in + 8 * len(CALLS)
    outside_in = fragmentation_in + 8 * len(FRAGMENTATION)
    shards_in = outside_in + 8 * len(OUTSIDE)
    header = struct.pack("<QIIiIQQQ28I", int.from_bytes(b"CUPULPG1", "little"), 2, 160, pid, state, start_ticks, 10**18, 5,
                         *places["counter"], *places["calls"], *places["json"], devices_at, stride, slots, counters_in, calls_in,
                         fragmentation_in, 0, outside_in, *places["fragmentation"], *places["outside"], unpooled_at, 64, slots, oom_count,
                         shards_in, 8 * len(SHARDS), 2, *places["shards"], 0)
    return header + body
