#!/usr/bin/env python3
"""Capacity: the smallest device memory on which a recorded job completes, natively and under each policy.

The simulated driver's memory (CUSIM_MEMORY) is bisected; driver calls per allocation are taken from the report of a
run at 1.05 times that minimum. Prints a table, and JSON with --json FILE. The unit of the search is 2 MiB or 0.1% of
the peak, whichever is more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from measure import TRACES, build_folder, environment

MIB = 1 << 20
# Driver calls that take, give back, map or wait: what a pool exists to avoid. Queries of state are not among them.
MEMORY_CALLS = ("cuMemAlloc", "cuMemFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
                "cuMemAddress", "cuCtxSynchronize", "cuEventSynchronize", "cuStreamSynchronize")


def peak_live_bytes(path: Path) -> tuple[int, int]:
    """(peak of the requested bytes, number of allocations), counted from the events: headers may be scaled."""
    import gzip
    live, peak, count, sizes = 0, 0, 0, {}
    with gzip.open(path, "rt") as file:
        for line in file:
            kind, *numbers = line.split()
            if kind == "a":
                sizes[numbers[0]] = int(numbers[1])
                live += int(numbers[1])
                count += 1
                peak = max(peak, live)
            elif kind == "f":
                live -= sizes.pop(numbers[0])
    return peak, count


def completes(build: Path, trace: Path, policy: str | None, memory: int, report: str = "none") -> bool:
    variables = {"CUSIM_MEMORY": str(memory)}
    if policy is not None:
        variables.update(CUPOOL_REPORT=report, CUPOOL_LOG="off", CUPOOL_TIMELINE="0")
    command = [str(build / "bench" / "replay"), str(trace)]
    code = subprocess.run(command, env=environment(build, policy, **variables), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode
    if code not in (0, 3):  # 3: a CUDA call failed, which is what a device that is too small must lead to
        raise SystemExit(f"replay of {trace.name} under {policy or 'the native driver'} ended with {code}")
    return code == 0


def smallest(build: Path, trace: Path, policy: str | None, peak: int) -> int | None:
    """Smallest memory in bytes that completes; None when four times the peak does not."""
    unit = max(2 * MIB, peak // 1000 // (2 * MIB) * 2 * MIB)
    low, high = peak // unit, 4 * peak // unit + 8
    if not completes(build, trace, policy, high * unit):
        return None
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if completes(build, trace, policy, middle * unit) else (middle, high)
    return high * unit


def driver_calls(build: Path, trace: Path, policy: str, memory: int) -> int | None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        if not completes(build, trace, policy, memory, str(report)):
            return None
        device = json.loads(report.read_text())["devices"][0]
        return sum(calls for symbol, calls in device["counters"]["driver_calls"].items()
                   if symbol.startswith(MEMORY_CALLS) and not symbol.startswith("cuMemAllocHost"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", help="trace files (default: all of tests/bench/traces)")
    parser.add_argument("--build", help="build folder (default: build)")
    parser.add_argument("--policies", default="grow,preallocate,platform", help="comma separated")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    build = build_folder(arguments.build)
    paths = [Path(name) for name in arguments.traces] or sorted(TRACES.glob("*.trace.gz"))
    policies = [None, *arguments.policies.split(",")]
    rows = []
    print(f"{'trace':40} {'policy':12} {'peak MiB':>9} {'needs MiB':>9} {'ratio':>6} {'calls/alloc':>11}")
    for path in paths:
        peak, allocations = peak_live_bytes(path)
        for policy in policies:
            needed = smallest(build, path, policy, peak)
            calls = driver_calls(build, path, policy, int(1.05 * needed)) if policy and needed else None
            per_allocation = calls / allocations if calls is not None else None
            rows.append({"trace": path.name, "policy": policy or "native", "peak_live_bytes": peak, "needs_bytes": needed,
                         "ratio": needed / peak if needed else None, "driver_calls_per_allocation": per_allocation})
            shown = ("-", "-") if needed is None else (f"{needed / MIB:.0f}", f"{needed / peak:.3f}")
            calls_shown = "-" if per_allocation is None else f"{per_allocation:.4f}"
            print(f"{path.name[:-len('.trace.gz')]:40} {policy or 'native':12} {peak / MIB:9.0f} {shown[0]:>9} {shown[1]:>6} "
                  f"{calls_shown:>11}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"bench": "capacity", "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
