#!/usr/bin/env python3
"""What a pair (one free, one allocation of the same size; a pool hit) costs, by size, by threads and by live blocks.

cupool under LD_PRELOAD on the simulated driver, plain and stream-ordered, beside that driver alone, glibc malloc and mimalloc,
and the pool called directly, without the preloaded entry points (the library). They take turns, so that a busy machine
disturbs all alike. Nanoseconds per pair and thread: the median of all rounds; quartiles with --spread and in the JSON.
"""

from __future__ import annotations

import argparse
import json

from measure import Case, build_folder, print_row, spread, write_json

KIB, MIB = 1 << 10, 1 << 20


def all_cases(build) -> list[Case]:
    program, library = str(build / "bench" / "hot_path"), str(build / "bench" / "hot_path_pool")
    memory = {"CUSIM_MEMORY": "200GiB"}
    return [Case("cupool", [program, "driver"], "grow", variables=memory), Case("cupool async", [program, "driver-async"], "grow", variables=memory),
            Case("library", [library, "pool"]), Case("library async", [library, "pool-async"]),
            Case("driver", [program, "driver"], variables=memory), Case("driver async", [program, "driver-async"], variables=memory),
            Case("glibc", [program, "glibc"]), Case("mimalloc", [program, "mimalloc"])]


def shape_of(row: dict) -> tuple[int, int, int]:
    return row["threads"], row["standing_blocks"], row["bytes"]


def size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def label(shape: tuple[int, int, int]) -> str:
    threads, standing, count = shape
    return size(count) + (f", {threads} threads" if threads > 1 else "") + (f", {standing:,} live blocks" if standing else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", help="build folder (default: build)")
    parser.add_argument("--repeat", type=int, default=3, help="times to run each (default 3)")
    parser.add_argument("--spread", action="store_true", help="print the quartiles too")
    parser.add_argument("--quick", action="store_true", help="two shapes, a few rounds: does it run at all?")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    build = build_folder(arguments.build)
    cases = all_cases(build)
    samples: dict[tuple[str, tuple], list[float]] = {}
    shapes: dict[tuple, None] = {}
    for _ in range(arguments.repeat):
        for case in cases:
            run = case.run(build, *(["--quick"] if arguments.quick else []))
            if run.returncode != 0:
                raise SystemExit(f"{case.name} ended with {run.returncode}: {run.stderr.strip()[-400:]}")
            for row in map(json.loads, run.stdout.splitlines()):
                shapes[shape_of(row)] = None
                samples.setdefault((case.name, shape_of(row)), []).extend(row["ns_per_pair"])
    figures = {key: spread(values) for key, values in samples.items() if values}
    widths = (-28, *[26 if arguments.spread else 13] * len(cases))
    print_row(widths, ("ns per pair", *(case.name for case in cases)))
    for shape in shapes:
        print_row(widths, (label(shape), *(shown(figures.get((case.name, shape)), arguments.spread) for case in cases)))
    rows = [{"case": name, "threads": threads, "standing_blocks": standing, "bytes": count, "ns_per_pair": figures.get((name, (threads, standing, count)))}
            for name, (threads, standing, count) in samples]
    write_json(arguments.json, "hot_path", rows, repeat=arguments.repeat, quick=arguments.quick)


def shown(figures: dict | None, with_quartiles: bool) -> str:
    if figures is None:
        return "-"
    quartiles = f" ({figures['first_quartile']:.1f} .. {figures['third_quartile']:.1f})" if with_quartiles else ""
    return f"{figures['median']:.1f}{quartiles}"


if __name__ == "__main__":
    main()
