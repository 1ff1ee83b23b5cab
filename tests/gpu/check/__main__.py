"""scripts/gpu-check: runs the parts one after the other, each within its limit and all within the budget."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

import outcome
import result as results
from parts import NO_GPU, Part, all_parts
from place import ROOT, Place

NOTHING_RAN = 77  # what ctest takes for "skipped"
LEAST_S = 2.0     # with less left, a part is not started


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu-check", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Asks a GPU what this project assumes of it, and runs programs and frameworks under the pool.",
        epilog="Exit code: 0 every part that ran passed (answers that differ from assumptions are shown, not failed); 1 a part failed\n"
               "or timed out; 2 wrong usage; 77 nothing ran (no usable GPU and no --dry-run, or every part was skipped).")
    parser.add_argument("--list", action="store_true", help="the parts, their limits and what they ask")
    parser.add_argument("--only", metavar="A,B", help="these parts only, in the order of the list")
    parser.add_argument("--skip", metavar="A,B", help="all but these")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where <date>-<device>.json goes (default: BUILD/gpu/results)")
    parser.add_argument("--build", type=Path, default=ROOT / "build", metavar="BUILD", help="the build folder (default: build)")
    parser.add_argument("--budget", type=float, default=530, metavar="S", help="seconds for everything (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="on the simulated driver; what needs a GPU is skipped")
    return parser.parse_args(words)


def choose(options: argparse.Namespace) -> list[Part]:
    parts = all_parts()
    for given in (options.only, options.skip):
        unknown = [name for name in (given or "").split(",") if name and name not in {part.name for part in parts}]
        if unknown:
            print(f"gpu-check: no part is named {unknown[0]!r}: see --list", file=sys.stderr)
            raise SystemExit(2)
    only, skip = ({name for name in (given or "").split(",") if name} for given in (options.only, options.skip))
    return [part for part in parts if (options.only is None or part.name in only) and part.name not in skip]


def run_part(part: Part, place: Place, deadline: float) -> outcome.Outcome:
    if place.simulated and not part.simulated:
        return outcome.skipped(NO_GPU)
    left_s = deadline - time.monotonic()
    if left_s < LEAST_S and left_s < part.limit_s:
        return outcome.skipped("the budget is spent")
    try:
        return part.run(place, min(part.limit_s, left_s))
    except Exception as error:  # one part's fault is not the others'
        return outcome.failed(f"gpu-check itself: {type(error).__name__}: {error}")


def run_all(parts: list[Part], place: Place, facts: dict[str, Any], options: argparse.Namespace) -> int:
    start = time.monotonic()
    rows: list[results.Row] = []
    for part in parts:
        began = time.monotonic()
        print(f"gpu-check: {part.name} ...", file=sys.stderr, flush=True)
        rows.append((part, run_part(part, place, start + options.budget), time.monotonic() - began))
    data = results.as_json(rows, facts, place.simulated, time.monotonic() - start)
    path = results.write(options.out or options.build / "gpu" / "results", data, place.ends_badly)
    print(results.table(data))
    print(f"written: {path}")
    if data["summary"]["failed"] or data["summary"]["timeout"]:
        return 1
    return 0 if data["summary"]["passed"] else NOTHING_RAN


def main(words: list[str]) -> int:
    options = parse(words)
    parts = choose(options)
    if options.list:
        for part in parts:
            print(f"{part.name:<15} {part.limit_s:>4.0f} s  {'' if part.simulated else '[GPU] '}{part.question}")
        return 0
    options.build = options.build.resolve()
    place = Place(options.build, options.dry_run)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running group is killed
    try:
        if not place.library.is_file():
            print(f"gpu-check: {place.library} is missing: run scripts/build", file=sys.stderr)
            return 2
        facts = place.device_facts()
        if not facts.get("usable"):
            print(f"gpu-check: NOTHING WAS CHECKED: no usable GPU ({facts.get('reason', 'unknown')}); --dry-run uses the simulated driver", file=sys.stderr)
            return NOTHING_RAN
        if facts.get("simulated") and not options.dry_run:
            print("gpu-check: NOTHING WAS CHECKED: libcuda.so.1 is the simulated driver; say --dry-run", file=sys.stderr)
            return NOTHING_RAN
        return run_all(parts, place, facts, options)
    finally:
        place.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
