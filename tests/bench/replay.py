#!/usr/bin/env python3
"""Recorded jobs under each policy, on the simulated driver: the smallest device on which each completes, and what it costs there.

Each job is played by an unmodified program under LD_PRELOAD, with kernels still pending past each free (--pending), so
that a pool really has to defer. The simulated device's memory is bisected to 2 MiB or 0.1% of the job's peak, whichever is
more; everything else is measured at 1.05 times the smallest memory:
  needs     smallest device memory that completes, and its ratio to the peak of the bytes that the job asked for at once
  calls     driver calls per allocation that take, give back, map or wait; `events` those that record, query or create events
  deferred  most bytes that were freed and waited for pending work
  ns/call   of one malloc or free on the host, simulated runtime and driver included: nothing pending | with pending work;
            median and quartiles of repetitions that take turns among the cases
The yardsticks, in the same run: the bare simulated driver (plain and stream-ordered), glibc malloc and mimalloc.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import sys
import tempfile
import zlib
from pathlib import Path

from measure import MIB, TRACES, Case, Parser, build_folder, output, print_row, shown, spread, write_json

OUT_OF_MEMORY = 3
# Driver calls that take, give back, map or wait: what a pool exists to avoid; and what deferring costs instead.
MEMORY_CALLS = ("cuMemAlloc", "cuMemFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
                "cuMemAddress", "cuMemPoolTrim", "cuCtxSynchronize", "cuEventSynchronize", "cuStreamSynchronize")
EVENT_CALLS = ("cuCtxRecordEvent", "cuEventRecord", "cuEventQuery", "cuEventCreate", "cuEventDestroy", "cuStreamWaitEvent", "cuCtxWaitEvent",
               "cuStreamQuery")
# What the page heap is to reach on each real job: its memory, and its memory calls per allocation.
GOAL_RATIO, GOAL_EXTRA_BYTES, GOAL_CALLS = 1.02, 8 * MIB, 0.1
WIDTHS = (-39, -16, 8, 8, 6, 8, 7, 8, 18, 18)
HEAD = ("trace", "case", "peak MiB", "needs", "ratio", "calls", "events", "deferred", "ns/call", "with pending work")


class Job:
    """A recorded job: its figures, and an uncompressed copy that loads quickly."""

    def __init__(self, path: Path, folder: Path):
        self.name = path.name.split(".trace")[0]
        self.path = folder / f"{self.name}.trace"
        data = path.read_bytes()
        try:
            text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            lines = text.decode().splitlines()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise SystemExit(f"{path}: not a trace: {error}") from error
        self.events = self._read(path, lines)
        self.allocations = sum(kind == "a" for kind, _, _ in self.events)
        self.peak_bytes = max(itertools.accumulate(size if kind == "a" else -size for kind, _, size in self.events))
        self.path.write_bytes(text)

    @staticmethod
    def _read(path: Path, lines: list[str]) -> list[tuple[str, str, int]]:
        """Each event's kind (a, f), block and requested bytes. From the events, since first lines may be scaled."""
        events, sizes = [], {}
        for number, line in enumerate(lines, 1):
            kind, block, size = [*line.split(), "", "", ""][:3]
            if kind == "a" and size.isdecimal():
                sizes[block] = int(size)
                events.append((kind, block, sizes[block]))
            elif kind == "f" and block in sizes:
                events.append((kind, block, sizes[block]))
            elif not kind.startswith("#"):
                raise SystemExit(f"{path}:{number}: not an event of a trace: {line[:60]!r}")
        if not sizes:
            raise SystemExit(f"{path}: a trace without an allocation")
        return events


class Broken(Exception):
    """A run that neither completed nor ran out of memory."""


class Bench:
    def __init__(self, build: Path, pending: int):
        self.build, self.pending = build, pending

    def completes(self, case: Case, job: Job, memory: int, **variables: str) -> bool:
        """Plays the job with pending work. Raises unless it completes or runs out of memory."""
        pending = ["--pending", str(self.pending)] if self.pending else []
        run = case.run(self.build, *pending, str(job.path), CUSIM_MEMORY=str(memory), **variables)
        if run.returncode not in (0, OUT_OF_MEMORY):
            raise Broken(f"on {memory} bytes it ended with {run.returncode}: {run.stderr.strip()[-400:]}")
        return run.returncode == 0

    def smallest(self, case: Case, job: Job) -> int | None:
        """Smallest memory in bytes that completes; None when four times the peak does not."""
        unit = max(2 * MIB, job.peak_bytes // 1000 // (2 * MIB) * 2 * MIB)
        low = max(job.peak_bytes // unit - 1, 0)
        for ratio in (1.02, 1.1, 1.25, 1.5, 2, 4):
            high = int(job.peak_bytes * ratio) // unit + 2
            if self.completes(case, job, high * unit):
                break
            low = high
        else:
            return None
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.completes(case, job, middle * unit) else (middle, high)
        return high * unit

    def costs(self, case: Case, job: Job, memory: int) -> dict:
        """Driver calls and deferral of one run with pending work."""
        with tempfile.TemporaryDirectory() as folder:
            log, report = Path(folder) / "calls.json", Path(folder) / "report.json"
            if not self.completes(case, job, memory, CUSIM_LOG=str(log), **({"CUPOOL_REPORT": str(report)} if case.policy else {})):
                return {}
            calls = json.loads(log.read_text(encoding="utf-8"))["calls"]
            devices = json.loads(report.read_text(encoding="utf-8"))["devices"] if report.is_file() else []

        def per_allocation(prefixes: tuple[str, ...]) -> float:
            wanted = (count for symbol, count in calls.items() if symbol.startswith(prefixes) and "Host" not in symbol)
            return sum(wanted) / job.allocations

        return {"memory_calls_per_allocation": per_allocation(MEMORY_CALLS), "event_calls_per_allocation": per_allocation(EVENT_CALLS),
                "deferred_peak_bytes": devices[0]["counters"]["deferred_bytes"]["peak"] if devices else None}

    def capacity(self, case: Case, job: Job) -> dict:
        needed = self.smallest(case, job)
        figures = {"needs_bytes": needed, "ratio": needed / job.peak_bytes if needed else None}
        for factor in (1.05, 1.1, 1.2) if needed else ():  # more memory is not always easier: placement changes with it
            memory = -(-int(factor * needed) // (2 * MIB)) * 2 * MIB  # as devices have it: whoever asks for all that is free must get it
            if costs := self.costs(case, job, memory):
                return {**figures, **costs, "measured_at_bytes": memory}
        return figures

    def time_once(self, case: Case, job: Job, memory: int, pending: int) -> float | None:
        arguments = ["--json", *(["--pending", str(pending)] if pending else []), str(job.path)]
        run = case.run(self.build, *arguments, CUSIM_MEMORY=str(memory), CUPOOL_TIMELINE="0")
        return json.loads(run.stdout)["ns_per_call"] if run.returncode == 0 else None

    def times(self, memory_of: list[tuple[Case, int]], job: Job, repeat: int, pending: int) -> dict[str, dict]:
        samples: dict[str, list[float]] = {}
        for _ in range(repeat):
            for case, memory in memory_of:
                if (value := self.time_once(case, job, memory, pending)) is not None:
                    samples.setdefault(case.name, []).append(value)
        return {name: spread(values) for name, values in samples.items()}

    def measure(self, cases: list[Case], job: Job, repeat: int) -> list[dict]:
        rows, places = [], []
        for case in cases:
            row = {"trace": job.name, "case": case.name, "peak_live_bytes": job.peak_bytes, "allocations": job.allocations}
            try:
                row.update(self.capacity(case, job) if case.on_device else {})
            except Broken as broken:
                row["error"] = str(broken)
            if "measured_at_bytes" in row or not case.on_device:
                places.append((case, row.get("measured_at_bytes", 0)))
            rows.append(row)
        idle = self.times(places, job, repeat, 0)
        busy = self.times([place for place in places if place[0].on_device], job, repeat, self.pending) if self.pending else {}
        for row in rows:
            row.update(ns_per_call=idle.get(row["case"]), ns_per_call_pending=busy.get(row["case"]))
        return rows


def cells(row: dict) -> tuple:
    def number(key: str, form: str, divisor: int = 1) -> str:
        return "-" if row.get(key) is None else f"{row[key] / divisor:{form}}"

    return (row["trace"], row["case"], number("peak_live_bytes", ".0f", MIB), number("needs_bytes", ".0f", MIB), number("ratio", ".3f"),
            number("memory_calls_per_allocation", ".4f"), number("event_calls_per_allocation", ".4f"), number("deferred_peak_bytes", ".0f", MIB),
            shown(row["ns_per_call"]), shown(row["ns_per_call_pending"]))


def meets_goals(row: dict) -> tuple[bool, bool]:
    """Does the job complete on little more than its peak, and with few calls on 1.05 times that?"""
    needs, calls = row.get("needs_bytes"), row.get("memory_calls_per_allocation")
    return (needs is not None and needs <= GOAL_RATIO * row["peak_live_bytes"] + GOAL_EXTRA_BYTES, calls is not None and calls <= GOAL_CALLS)


def print_summary(rows: list[dict], cases: list[Case]) -> None:
    print(f"\nover all traces; `none`: not even with four times the peak; `memory`: need at most {GOAL_RATIO} x their peak + {GOAL_EXTRA_BYTES // MIB} MiB; "
          f"`few calls`: at most {GOAL_CALLS}")
    widths = (-21, 6, 6, 6, 6, 8, 9, 6, 9, 4)
    print_row(widths, ("case", "traces", "none", "mean", "worst", "calls", "at most", "memory", "few calls", "both"))
    for case in cases:
        mine = [row for row in rows if row["case"] == case.name]
        ratios = [row["ratio"] for row in mine if row.get("ratio")]
        calls = [row["memory_calls_per_allocation"] for row in mine if "memory_calls_per_allocation" in row]
        if ratios and calls:
            met = [meets_goals(row) for row in mine]
            print_row(widths, (case.name, len(mine), len(mine) - len(ratios), f"{statistics.mean(ratios):.3f}", f"{max(ratios):.3f}",
                               f"{statistics.mean(calls):.4f}", f"{max(calls):.4f}", sum(memory for memory, _ in met), sum(few for _, few in met),
                               sum(memory and few for memory, few in met)))


def figure(row: dict) -> str:
    """Ratio and calls; `-` for calls where no run with a little more memory completed."""
    if "error" in row or "ratio" not in row:
        return "-"
    calls = row.get("memory_calls_per_allocation")
    return f"{row['ratio']:.3f} · {'-' if calls is None else f'{calls:.3f}'}" if row["ratio"] else "> 4"


def markdown(rows: list[dict]) -> str:
    """One line per trace: ratio and driver calls per allocation of each case."""
    cases = list(dict.fromkeys(row["case"] for row in rows if "ratio" in row))
    lines = [f"| trace | peak MiB | {' | '.join(cases)} |", "|---|---|" + "---|" * len(cases)]
    for trace in dict.fromkeys(row["trace"] for row in rows):
        mine = {row["case"]: row for row in rows if row["trace"] == trace}
        peak = next(iter(mine.values()))["peak_live_bytes"] / MIB
        figures = (figure(mine.get(case, {})) for case in cases)
        lines.append(f"| {trace} | {peak:.0f} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def all_cases(build: Path) -> list[Case]:
    program = str(build / "bench" / "replay")
    plain, ordered = [program], [program, "--allocator", "cuda-async"]
    return [Case("driver", plain), Case("driver, async", ordered), *(Case(policy, plain, policy) for policy in ("grow", "preallocate", "platform")),
            Case("grow, async", ordered, "grow"), *(Case(f"grow, {backing}{suffix}", program, "grow", variables={"CUPOOL_BACKING": backing})
              for backing in ("segments", "pages") for suffix, program in (("", plain), (", async", ordered))),
            *(Case(name, [program, "--allocator", name], on_device=False) for name in ("glibc", "mimalloc"))]


def run_bench(bench: Bench, cases: list[Case], paths: list[Path], repeat: int) -> list[dict]:
    """Measures and prints, trace by trace."""
    rows = []
    print_row(WIDTHS, HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            job = Job(path, Path(folder))
            for row in bench.measure(cases, job, repeat):
                print_row(WIDTHS, cells(row))
                if "error" in row:
                    print(f"  broken: {row['error']}")
                rows.append(row)
            job.path.unlink()
    print_summary(rows, cases)
    return rows


def finish(rows: list[dict], json_path: str | None, bench: str, arguments: argparse.Namespace) -> int:
    """Writes the JSON; the exit code."""
    write_json(json_path, bench, rows, repeat=arguments.repeat, pending=arguments.pending)
    if arguments.markdown:
        Path(arguments.markdown).write_text(markdown(rows), encoding="utf-8")
    return 1 if any("error" in row for row in rows) else 0


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a number: {text}")
    return int(text)


def parser_for(description: str) -> argparse.ArgumentParser:
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="trace files, or folders of them (default: tests/bench/traces)")
    parser.add_argument("--build", help="build folder (default: build)")
    parser.add_argument("--repeat", type=count, default=5, help="times to run each for its times (default 5; 0: no times)")
    parser.add_argument("--pending", type=count, default=256, help="frees that the device is behind the host (default 256; 0: never busy)")
    parser.add_argument("--json", type=output, help="write the figures to this file")
    parser.add_argument("--markdown", type=output, help="write ratios and calls as a Markdown table to this file")
    return parser


def trace_files(arguments: list[Path]) -> list[Path]:
    files = [file for path in arguments or [TRACES] for file in (sorted(path.glob("*.trace.gz")) if path.is_dir() else [path])]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise SystemExit(f"no such trace: {missing[0]}")
    if not files:
        raise SystemExit("no trace files")
    return files


def main() -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--cases", help="comma separated, of the names in the table ('grow, async' is written grow+async; default: all)")
    arguments = parser.parse_args()
    build = build_folder(arguments.build)
    cases = all_cases(build)
    if arguments.cases:
        known = {case.name.replace(", ", "+"): case for case in cases}
        wanted = arguments.cases.split(",")
        if unknown := [name for name in wanted if name not in known]:
            parser.error(f"no case {unknown[0]}; there are {', '.join(known)}")
        cases = [known[name] for name in wanted]
    rows = run_bench(Bench(build, arguments.pending), cases, trace_files(arguments.traces), arguments.repeat)
    return finish(rows, arguments.json, "replay", arguments)


if __name__ == "__main__":
    sys.exit(main())
