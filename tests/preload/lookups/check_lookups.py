#!/usr/bin/env python3
"""The real cudart's lookups, recorded: every hooked entry resolves into libcupool.so, every other into the driver.

    check_lookups.py --entry-points shim/entry_points.def --library libcupool.so --recorder librecorder.so
        --driver BUILD/sim --runtime TOOLKIT/lib64 [--runtimes N] [--fallback] -- program [argument...]

The same program is recorded twice: without the library, which says what the driver alone gives, and with it. --runtimes is
the number of copies of cudart that the program ends up with. --fallback hides cuGetProcAddress_v2, so that cudart uses dlsym.
"""
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

LEAST_LOOKUPS = 400  # of one runtime; 13.0 makes 440


@dataclass(frozen=True)
class Lookup:
    how: str
    name: str
    version: str
    flags: str
    result: str
    object: str
    symbol: str

    def question(self) -> tuple[str, str, str, str]:
        return self.how, self.name, self.version, self.flags


def hooked_symbols(path: Path) -> set[str]:
    rows = re.findall(r"^HOOK\(\s*\w+,\s*(\w+),", path.read_text(encoding="utf-8"), re.M)
    if not rows:
        sys.exit(f"{path}: no rows found")
    return set(rows)


def record(given: argparse.Namespace, library: Path | None) -> list[Lookup]:
    with tempfile.TemporaryDirectory(prefix="cupool-lookups-") as folder:
        log = Path(folder) / "log"
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_"))}
        env["LD_PRELOAD"] = f"{given.recorder}:{library}" if library else str(given.recorder)
        env["LD_LIBRARY_PATH"] = f"{given.runtime}:{given.driver}"  # the test runtime lies beside the driver
        env["LOOKUPS_LOG"] = str(log)
        if library:
            env["LOOKUPS_LIBRARY"] = str(library)
        if given.fallback:
            env["LOOKUPS_WITHOUT"] = "cuGetProcAddress_v2"
        done = subprocess.run(given.program, env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            sys.exit(f"{given.program}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return [Lookup(*line.split(" ", 6)) for line in log.read_text(encoding="utf-8").splitlines()]


def compare(bare: list[Lookup], ours: list[Lookup], hooked: set[str], library: str) -> list[str]:
    """Every question of `ours` against the answer that the driver alone gave to the same question."""
    expected = {lookup.question(): lookup for lookup in bare}
    broken = []
    for lookup in ours:
        alone = expected.get(lookup.question())
        if alone is None:
            broken.append(f"asked only with the library: {lookup}")
        elif lookup.result != alone.result:
            broken.append(f"{lookup.name}@{lookup.version}: result {lookup.result}, the driver gives {alone.result}")
        elif alone.symbol in hooked and (lookup.object != library or lookup.symbol != alone.symbol):
            broken.append(f"{lookup.name}@{lookup.version}/{lookup.flags}: {lookup.object}:{lookup.symbol}, expected {library}:{alone.symbol}")
        elif alone.symbol not in hooked and (lookup.object, lookup.symbol) != (alone.object, alone.symbol):
            broken.append(f"{lookup.name}@{lookup.version}/{lookup.flags}: {lookup.object}:{lookup.symbol}, the driver gives {alone.symbol}")
    if Counter(l.question() for l in ours) != Counter(l.question() for l in bare):
        broken.append("the library changes which lookups are made")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--entry-points", "--library", "--recorder", "--driver", "--runtime"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--runtimes", type=int, default=1)
    parser.add_argument("--fallback", action="store_true")
    parser.add_argument("program", nargs="+")
    given = parser.parse_args()
    hooked = hooked_symbols(given.entry_points)
    bare = record(given, None)
    ours = record(given, given.library)
    broken = compare(bare, ours, hooked, given.library.name)
    caught = [lookup for lookup in ours if lookup.object == given.library.name]
    starts = sum(lookup.how == "dlsym" and lookup.name == "cuGetProcAddress_v2" for lookup in ours)
    if starts != given.runtimes and not given.fallback:
        broken.append(f"{starts} runtimes looked the driver up, expected {given.runtimes}")
    if len(ours) < LEAST_LOOKUPS * given.runtimes:
        broken.append(f"only {len(ours)} lookups were recorded: the recorder has lost its way")
    for name, version in (("cuMemAlloc", "3020"), ("cuMemFree", "3020"), ("cuGetProcAddress", "12000")):
        if not given.fallback and not any(l.name == name and l.version == version for l in caught):
            broken.append(f"{name} was never asked for")
    print(f"{len(ours)} lookups by {starts} runtimes, {len(caught)} resolved into {given.library.name}, {len(ours) - len(caught)} elsewhere")
    for sentence in broken[:40]:
        print(f"BROKEN {sentence}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
