#!/usr/bin/env python3
"""Host memory that the pool costs on recorded jobs: that of the same program with cupool less that without, as a share of the job's peak.

The device has 1.1 times that peak. `resident` is the most that was ever resident, the library's code included, which all processes of a machine
share; `written` is what was written and is resident at the end: the pool's books, live page and record of events, less what the program alone had written
before its first call; `no timeline` is that with CUPOOL_TIMELINE=0, without the record of events for the report. What the simulated driver needs for
the pool's handles and events is counted too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from measure import MIB, TRACES, Case, Parser, build_folder, output, print_row, times, write_json
from replay import Job

WIDTHS = (-39, 10, 13, 9, 12, 9, 12, 9)


KINDS = ("resident", "written", "written_without_timeline")


def host_bytes(case: Case, build: Path, job: Job, memory: int, **variables: str) -> dict:
    done = case.run(build, "--json", str(job.path), CUSIM_MEMORY=str(memory), **variables)
    if done.returncode != 0:
        sys.exit(f"{job.name}: {case.name} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def measured(build: Path, job: Job, repeat: int) -> dict:
    program = [str(build / "bench" / "replay")]
    alone, pooled = Case("driver", program), Case("cupool", program, "grow")
    memory = int(1.1 * job.peak_bytes) // (2 * MIB) * 2 * MIB + 16 * MIB
    costs = []
    for _ in range(repeat):
        without, with_pool = host_bytes(alone, build, job, 4 * memory), host_bytes(pooled, build, job, memory)
        no_timeline = host_bytes(pooled, build, job, memory, CUPOOL_TIMELINE="0")
        costs.append((with_pool["host_peak_bytes"] - without["host_peak_bytes"], with_pool["host_written_bytes"] - without["host_written_before_bytes"],
                      no_timeline["host_written_bytes"] - without["host_written_before_bytes"]))
    medians = (max(statistics.median(column), 0) for column in zip(*costs))
    return {"trace": job.name, "peak_live_bytes": job.peak_bytes, **{f"{kind}_bytes": cost for kind, cost in zip(KINDS, medians)}}


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", default=[str(TRACES)], help="trace files, or folders of them (default: tests/bench/traces)")
    parser.add_argument("--build", help="build folder (default: build)")
    parser.add_argument("--repeat", type=times, default=3, help="times to run each (default 3); medians")
    parser.add_argument("--json", type=output, help="write the figures to this file")
    arguments = parser.parse_args()
    build = build_folder(arguments.build)
    paths = [path for name in arguments.traces for path in (sorted(Path(name).glob("*.trace.gz")) if Path(name).is_dir() else [Path(name)])]
    if not paths:
        parser.error("no traces")
    print_row(WIDTHS, ("trace", "peak MiB", "resident KiB", "share", "written", "share", "no timeline", "share"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            if not path.is_file():
                sys.exit(f"{path}: no such file")
            row = measured(build, Job(path, Path(folder)), arguments.repeat)
            rows.append(row)
            columns = [text for kind in KINDS for text in (row[f"{kind}_bytes"] // 1024, f"{row[f'{kind}_bytes'] / row['peak_live_bytes']:.4%}")]
            print_row(WIDTHS, (row["trace"], row["peak_live_bytes"] // MIB, *columns))
    write_json(arguments.json, "host_memory", rows, repeat=arguments.repeat)


if __name__ == "__main__":
    main()
