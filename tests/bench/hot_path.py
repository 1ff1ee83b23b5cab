#!/usr/bin/env python3
"""Pair cost (allocate + free, pool hit): cupool on the simulated driver, that driver alone, and mimalloc, in one run.

Rounds of the three alternate, so that a busy machine disturbs all alike. Prints a table, and JSON with --json FILE.
"""

from __future__ import annotations

import argparse
import json
import subprocess

from measure import build_folder, environment, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", help="build folder (default: build)")
    parser.add_argument("--repeat", type=int, default=3, help="times to run each (default 3)")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    build = build_folder(arguments.build)
    program = str(build / "bench" / "hot_path")
    memory = {"CUSIM_MEMORY": "80GiB"}
    cases = {
        "cupool grow": ([program], environment(build, "grow", **memory)),
        "simulated driver": ([program], environment(build, None, **memory)),
        "mimalloc": ([program, "--mimalloc"], environment(build, None)),
    }
    samples: dict[tuple[str, int, int], list[float]] = {}
    for _ in range(arguments.repeat):
        for name, (command, variables) in cases.items():
            output = subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout
            for row in map(json.loads, output.splitlines()):
                samples.setdefault((name, row["bytes"], row["threads"]), []).extend(row["ns_per_pair"])
    rows = [{"allocator": name, "bytes": size, "threads": threads, "ns_per_pair": spread(values)}
            for (name, size, threads), values in samples.items()]
    print(f"{'allocator':18} {'bytes':>9} {'threads':>7} {'median ns':>10} {'quartiles':>19}")
    for row in sorted(rows, key=lambda row: (row["threads"], row["bytes"])):
        figures = row["ns_per_pair"]
        quartiles = f"{figures['first_quartile']:.1f} .. {figures['third_quartile']:.1f}"
        print(f"{row['allocator']:18} {row['bytes']:9} {row['threads']:7} {figures['median']:10.1f} {quartiles:>19}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"bench": "hot_path", "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
