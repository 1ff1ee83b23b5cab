"""Is a report that a program left under the pool valid, and are its counters possible?"""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import Any

from place import ROOT, Place


def _counter_faults(counters: dict[str, Any]) -> list[str]:
    faults = []
    for name in ("live_bytes", "requested_bytes", "reserved_bytes", "deferred_bytes", "live_blocks"):
        if counters[name]["current"] > counters[name]["peak"]:
            faults.append(f"{name}: current above peak")
    if counters["frees"] > counters["allocations"]:
        faults.append("more frees than allocations")
    if counters["allocations"] - counters["frees"] != counters["live_blocks"]["current"]:
        faults.append("allocations - frees is not the number of live blocks")
    if counters["requested_bytes"]["current"] > counters["live_bytes"]["current"]:
        faults.append("more requested than live bytes")
    return faults


def files(pattern: str) -> list[Path]:
    return sorted(Path(name) for name in glob.glob(pattern))


LEAST_OUTSIDE_BYTES = 1 << 30


def judge(place: Place, pattern: str, least_allocations: int, maps_itself: bool = False) -> tuple[str, dict[str, Any]]:
    """What is wrong ("" when nothing is), and the figures of the report with the most allocations."""
    found = files(pattern)
    if not found:
        return "no report was left", {}
    ended = place.run([str(ROOT / "scripts" / "cupool"), "validate", *map(str, found)], 60)
    if ended.code != 0:
        return f"cupool validate: {(ended.output + ended.errors).strip()[:300]}", {}
    best: dict[str, Any] = {}
    for path in found:
        report = json.loads(path.read_text(encoding="utf-8"))
        for device in report["devices"]:
            counters = device["counters"]
            faults = _counter_faults(counters)
            if faults:
                return f"{path.name}: {'; '.join(faults)}", {}
            figures = {"allocations": counters["allocations"], "frees": counters["frees"], "policy": device["policy"],
                       "backing": device["backing"], "peak_live_bytes": counters["live_bytes"]["peak"],
                       "peak_reserved_bytes": counters["reserved_bytes"]["peak"], "peak_outside_bytes": counters["outside_bytes"]["peak"], "native_fallbacks": counters["native_fallbacks"],
                       "driver_calls": counters["driver_calls"], "unpooled_apis_seen": report["data_quality"]["unpooled_apis_seen"]}
            if not best or figures["allocations"] > best["allocations"]:
                best = figures
    if maps_itself:
        enough = bool(best) and best["peak_outside_bytes"] >= LEAST_OUTSIDE_BYTES
        return "" if enough else f"{best.get('peak_outside_bytes', 0)} bytes were seen outside the pool, expected at least {LEAST_OUTSIDE_BYTES}", best
    if not best or best["allocations"] < least_allocations:
        return f"{best.get('allocations', 0)} allocations reached the pool, expected at least {least_allocations}", best
    return "", best
