#!/usr/bin/env python3
"""Start-up cost in a process that never uses CUDA: /bin/true with and without the preload, in turn."""

from __future__ import annotations

import json
import os
import time

from measure import Parser, build_folder, environment, output, spread, times


def run_once(variables: dict[str, str]) -> float:
    """Microseconds from spawn to exit."""
    start = time.perf_counter_ns()
    pid = os.posix_spawn("/bin/true", ["true"], variables)
    os.waitpid(pid, 0)
    return (time.perf_counter_ns() - start) / 1e3


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--build", help="build folder (default: build)")
    parser.add_argument("--repeat", type=times, default=300, help="times to run each (default 300)")
    parser.add_argument("--json", type=output, help="write the figures to this file")
    arguments = parser.parse_args()
    build = build_folder(arguments.build)
    cases = {"plain": environment(build, None), "cupool off": environment(build, "off"), "cupool grow": environment(build, "grow")}
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(arguments.repeat):
        for name, variables in cases.items():
            samples[name].append(run_once(variables))
    rows = {name: spread(values) for name, values in samples.items()}
    for name, figures in rows.items():
        added = figures["median"] - rows["plain"]["median"]
        print(f"{name:12} median {figures['median']:8.1f} us, quartiles {figures['first_quartile']:.1f} .. "
              f"{figures['third_quartile']:.1f}, {added:+.1f} us against plain")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"bench": "startup", "unit": "us", "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
