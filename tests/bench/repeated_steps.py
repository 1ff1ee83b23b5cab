#!/usr/bin/env python3
"""Recorded jobs as training steps: each is played again and again, and what it frees it allocates again. What does each step call the driver for?

A job is played --steps times by an unmodified program under LD_PRELOAD, on the simulated driver; what it leaves at its end (weights, optimizer state) stays. Each of
the devices is a multiple of the most that the steps have live at once (sizes rounded to 512 bytes), or has bytes of its own.
A GPU that is --pending frees behind holds what they freed as well; where that alone does not fit the device (`*`), something has to wait. Printed of each: the calls of steps 3 and 4, and the calls per step of the second half of all steps, that
  memory   take, give back or map memory or addresses
  wait     wait for the device
and in how many jobs these steps made neither.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import sys
import tempfile
from pathlib import Path

from measure import MIB, Case, Parser, build_folder, output, print_row, times, write_json
from replay import OUT_OF_MEMORY, Job, count, trace_files

ALIGNMENT = 512
GRANULARITY = 2 * MIB  # of a device's memory
WIDTHS = (-39, 8, 10, 12, 12, 14, 14)
HEAD = ("trace", "behind", "device", "step 3", "step 4", "later memory", "later waits")


class Step(Job):
    """A recorded job as a step: what it frees is allocated again each time, what it never frees once. Its peak is of bytes as the pool rounds them."""

    def __init__(self, path: Path, folder: Path):
        super().__init__(path, folder)
        freed = {block for kind, block, _ in self.events if kind == "f"}
        rounded = [(kind, block, -(-size // ALIGNMENT) * ALIGNMENT) for kind, block, size in self.events]
        self.changes = [size if kind == "a" else -size for kind, block, size in rounded if block in freed]
        self.kept_bytes = sum(size for _, block, size in rounded if block not in freed)
        self.peak_bytes = self.unavailable_bytes(0)

    def unavailable_bytes(self, behind: int) -> int:
        """The most that is live or freed by one of the last `behind` frees, which the GPU has yet to come to."""
        waiting: collections.deque[int] = collections.deque()
        most = taken = self.kept_bytes
        for change in self.changes * 2:
            if change > 0:
                taken += change
                most = max(most, taken)
            else:
                waiting.append(change)
                if len(waiting) > behind:
                    taken += waiting.popleft()
        return most


def device_bytes(text: str) -> float:
    """A multiple of the peak (`1.5x`), or GiB (`80GiB`, negative here)."""
    try:
        value = float(text.removesuffix("x")) if text.endswith("x") else -float(text.removesuffix("GiB")) * 1024 * MIB
    except ValueError:
        value = 0.0
    if not (value >= 1 or value <= -1):
        raise argparse.ArgumentTypeError(f"neither a multiple like 1.5x nor a size like 80GiB: {text}")
    return value


def calls_of(step: dict) -> str:
    return f"{step['memory_calls']} + {step['waits']}"


def measure(case: Case, build: Path, job: Step, device: str, pending: int, steps: int) -> dict:
    wanted = device_bytes(device)
    memory = -(-int(wanted * job.peak_bytes if wanted > 0 else -wanted) // GRANULARITY) * GRANULARITY
    row = {"trace": job.name, "behind": pending, "device": device, "device_bytes": memory, "peak_bytes": job.peak_bytes,
           "unavailable_bytes": job.unavailable_bytes(pending)}
    run = case.run(build, "--json", "--steps", str(steps), *(["--pending", str(pending)] if pending else []), str(job.path), CUSIM_MEMORY=str(memory))
    if run.returncode == OUT_OF_MEMORY:
        return {**row, "out_of_memory": True}
    if run.returncode != 0:
        return {**row, "error": f"ended with {run.returncode}: {run.stderr.strip()[-400:]}"}
    return {**row, "steps": json.loads(run.stdout)["steps"]}


def later(row: dict, what: str) -> float:
    half = row["steps"][len(row["steps"]) // 2:]
    return statistics.mean(step[what] for step in half)


def has_to_wait(row: dict) -> bool:
    return row["unavailable_bytes"] > row["device_bytes"]


def print_job(row: dict) -> None:
    if "steps" in row:
        cells = (calls_of(row["steps"][2]), calls_of(row["steps"][3]), f"{later(row, 'memory_calls'):.2f}", f"{later(row, 'waits'):.2f}")
    else:
        cells = ("refused" if "out_of_memory" in row else f"broken: {row['error']}",)
    print_row(WIDTHS, (row["trace"], row["behind"], row["device"] + (" *" if has_to_wait(row) else ""), *cells))


def print_summary(rows: list[dict]) -> None:
    print("\nover all jobs that complete and need not wait: calls per step; and in how many steps 3 and 4, or the later ones, call and wait for nothing")
    print_row((8, 10, 6, 10, 10, 10, 11), ("behind", "device", "jobs", "memory", "waits", "none 3, 4", "none later"))
    for behind, device in dict.fromkeys((row["behind"], row["device"]) for row in rows):
        mine = [row for row in rows if (row["behind"], row["device"]) == (behind, device) and "steps" in row and not has_to_wait(row)]
        if not mine:
            continue
        quiet = [row for row in mine if all(step["memory_calls"] + step["waits"] == 0 for step in row["steps"][2:4])]
        quiet_later = [row for row in mine if later(row, "memory_calls") + later(row, "waits") == 0]
        print_row((8, 10, 6, 10, 10, 10, 11), (behind, device, len(mine), f"{statistics.mean(later(row, 'memory_calls') for row in mine):.2f}",
                                             f"{statistics.mean(later(row, 'waits') for row in mine):.2f}", len(quiet), len(quiet_later)))


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="trace files, or folders of them (default: tests/bench/traces)")
    parser.add_argument("--build", help="build folder (default: build)")
    parser.add_argument("--steps", type=times, default=10, help="how often each job is played (default 10, at least 4)")
    parser.add_argument("--pending", type=count, action="append", help="frees that the device is behind the host; may be given again (default 0, 32 and 256)")
    parser.add_argument("--device", type=str, action="append", help="1.5x (of the peak) or 80GiB; may be given again (default 1.2x, 1.5x, 2x, 80GiB)")
    parser.add_argument("--wait", action="store_true", help="the program waits for the device at the end of each step")
    parser.add_argument("--async", dest="stream_ordered", action="store_true", help="allocate and free by cudaMallocAsync and cudaFreeAsync")
    parser.add_argument("--policy", default="grow", help="CUPOOL_POLICY (default grow)")
    parser.add_argument("--json", type=output, help="write the figures to this file")
    arguments = parser.parse_args()
    devices = arguments.device or ["1.2x", "1.5x", "2x", "80GiB"]
    for device in devices:
        try:
            device_bytes(device)
        except argparse.ArgumentTypeError as error:
            parser.error(f"argument --device: {error}")
    if arguments.steps < 4:
        parser.error("argument --steps: at least 4")
    build = build_folder(arguments.build)
    case = Case("steps", [str(build / "bench" / "replay"), *(["--allocator", "cuda-async"] if arguments.stream_ordered else []),
                          *(["--wait-each-step"] if arguments.wait else [])], arguments.policy)
    rows = []
    print_row(WIDTHS, HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for path in trace_files(arguments.traces):
            job = Step(path, Path(folder))
            for pending in arguments.pending or [0, 32, 256]:
                for device in devices:
                    rows.append(measure(case, build, job, device, pending, arguments.steps))
                    print_job(rows[-1])
            job.path.unlink()
    print_summary(rows)
    write_json(arguments.json, "repeated_steps", rows, steps=arguments.steps)
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
