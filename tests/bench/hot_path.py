#!/usr/bin/env python3
"""What a pair (one free, one allocation of the same size; a pool hit) costs, by size, by threads and by live blocks.

cupool under LD_PRELOAD on the simulated driver, plain and stream-ordered, beside that driver alone, glibc malloc and mimalloc,
and the pool called directly, without the preloaded entry points (the library). They take turns, so that a busy machine
disturbs all alike. Nanoseconds per pair and thread: the median of all rounds; quartiles with --spread and in the JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from measure import Case, Parser, build_folder, output, print_row, spread, times, write_json

KIB, MIB = 1 << 10, 1 << 20


def all_cases(build: Path) -> list[Case]:
    program, library = str(build / "bench" / "hot_path"), str(build / "bench" / "hot_path_pool")
    memory = {"CUSIM_MEMORY": "200GiB"}
    return [Case("cupool", [program, "driver"], "grow", variables=memory), Case("cupool async", [program, "driver-async"], "grow", variables=memory),
            Case("library", [library, "pool"]), Case("library async", [library, "pool-async"]),
            Case("driver", [program, "driver"], variables=memory), Case("driver async", [program, "driver-async"], variables=memory),
            Case("glibc", [program, "glibc"]), Case("mimalloc", [program, "mimalloc"])]


def shape_of(row: dict) -> tuple[int, int, int, int, bool]:
    return row["threads"], row["standing_blocks"], row["bytes"], row["ring_blocks"], row["scattered"]


def size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def label(shape: tuple[int, int, int, int, bool]) -> str:
    threads, standing, count, ring, scattered = shape
    if scattered:
        return f"{size(count)}, at random, {ring // 10:,} of {ring:,} left"
    return size(count) + (", the one live block" if ring == 1 else "") + (f", {threads} threads" if threads > 1 else "") + (f", {standing:,} live blocks" if standing else "")


@dataclass
class Pairs:
    """What was measured."""
    shapes: list[tuple] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)            # of the JSON
    figures: dict[tuple[str, tuple], dict] = field(default_factory=dict)  # by case and shape; none where the blocks did not fit
    broken: dict[str, str] = field(default_factory=dict)      # cases that ended otherwise, and how


def run_pairs(build: Path, cases: list[Case], repeat: int, *arguments: str) -> Pairs:
    """The cases take turns; one that breaks is left alone from then on."""
    result = Pairs()
    samples: dict[tuple[str, tuple], list[float]] = {}
    for case in [case for _ in range(repeat) for case in cases]:
        if case.name in result.broken:
            continue
        run = case.run(build, *arguments)
        if run.returncode != 0:
            result.broken[case.name] = f"{case.name} ended with {run.returncode}: {run.stderr.strip()[-400:]}"
        for row in map(json.loads, run.stdout.splitlines()):
            samples.setdefault((case.name, shape_of(row)), []).extend(row["ns_per_pair"])
    result.shapes = list(dict.fromkeys(shape for _, shape in samples))
    result.figures = {key: spread(values) for key, values in samples.items() if values}
    result.rows = [{"case": name, "threads": shape[0], "standing_blocks": shape[1], "bytes": shape[2], "ring_blocks": shape[3], "scattered": shape[4], "ns_per_pair": result.figures.get((name, shape))}
                   for name, shape in samples]
    return result


def quartiles(figures: dict | None) -> str:
    return "-" if figures is None else f"{figures['first_quartile']:.0f} … {figures['third_quartile']:.0f}"


def shown(figures: dict | None, with_quartiles: bool) -> str:
    if figures is None:
        return "-"
    spread_of = f" ({figures['first_quartile']:.1f} .. {figures['third_quartile']:.1f})" if with_quartiles else ""
    return f"{figures['median']:.1f}{spread_of}"


def markdown(pairs: Pairs, cases: list[Case]) -> str:
    """First and third quartile."""
    lines = [f"| pair of | {' | '.join(case.name for case in cases)} |", "|---|" + "---|" * len(cases)]
    lines += [f"| {label(shape)} | {' | '.join(quartiles(pairs.figures.get((case.name, shape))) for case in cases)} |" for shape in pairs.shapes]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", help="build folder (default: build)")
    parser.add_argument("--repeat", type=times, default=3, help="times to run each (default 3)")
    parser.add_argument("--spread", action="store_true", help="print the quartiles too")
    parser.add_argument("--quick", action="store_true", help="two shapes, a few rounds: does it run at all?")
    parser.add_argument("--json", type=output, help="write the figures to this file")
    parser.add_argument("--markdown", type=output, help="write the quartiles as a Markdown table to this file")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    build = build_folder(arguments.build)
    cases = all_cases(build)
    pairs = run_pairs(build, cases, arguments.repeat, *(["--quick"] if arguments.quick else []))
    widths = (-28, *[26 if arguments.spread else 13] * len(cases))
    print_row(widths, ("ns per pair", *(case.name for case in cases)))
    for shape in pairs.shapes:
        print_row(widths, (label(shape), *(shown(pairs.figures.get((case.name, shape)), arguments.spread) for case in cases)))
    write_json(arguments.json, "hot_path", pairs.rows, repeat=arguments.repeat, quick=arguments.quick)
    if arguments.markdown:
        Path(arguments.markdown).write_text(markdown(pairs, cases), encoding="utf-8")
    for line in pairs.broken.values():
        print(f"hot_path: {line}", file=sys.stderr)
    return 1 if pairs.broken else 0


if __name__ == "__main__":
    sys.exit(main())
