#!/usr/bin/env python3
"""Threads that are in the driver at once, natively and under the library: each must be answered the same.

    crowd.py --build BUILD [--seed 1] [--runs 20] [--steps 600] [--tight FACTOR] [--setting NAME=VALUE] [--preload-first LIBRARY] [--only]

The seed gives the program, the settings of the simulated driver and those of the library. --tight: memory is FACTOR times what the
threads may hold together, and 16 MiB. --preload-first libdelays.so keeps threads at locks. Exit: 0 no difference, 1 a difference.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True

import reports  # noqa: E402

LIMIT_S = 120
SANITIZER_EXIT = 66
SIMULATED = {"GRANULARITY": ["2MiB", "4MiB"], "PEERS": ["0"], "NOTE_SYNC": ["1"], "REUSE_HANDLES": ["1"], "COPY_NS": ["0", "50000"], "THREAD_STREAMS": ["end"], "VMM": ["0"],
             "POOL_STEP": ["2MiB", "32MiB"], "CONTEXT_BYTES": ["4MiB"]}
VERSIONS = ["13040", "13030", "13000", "12080", "12050", "12040", "12000", "11080"]
SETTINGS = {"BACKING": ["pages", "segments"], "FREE": ["sync"], "RELEASE_THRESHOLD": ["0", "1MiB", "64MiB"], "TIMELINE": ["0", "100"], "IPC": ["native"], "LIMIT": ["6GiB"]}
POLICIES = ["grow", "grow", "grow", "preallocate", "async", "platform", "off"]


def draw(rng: random.Random, table: dict[str, list[str]], chance: float) -> dict[str, str]:
    return {name: rng.choice(values) for name, values in table.items() if rng.random() < chance}


class Run:
    def __init__(self, given: argparse.Namespace, seed: int):
        rng = random.Random(seed)
        self.given, self.seed = given, seed
        self.devices, self.threads, self.mib = rng.choice([1, 1, 2]), rng.choice([2, 3, 4, 8]), rng.choice([16, 64, 200])
        policy = rng.choice(POLICIES)
        simulated = {**draw(rng, SIMULATED, .15), "DEVICES": str(self.devices), "MEMORY": "8GiB", "CLOCK": "real", "DRIVER_VERSION": rng.choice(VERSIONS)}
        settings = {**draw(rng, SETTINGS, .25), "POLICY": policy, "LOG": "off"}
        if policy == "preallocate" or (policy == "async" and rng.random() < .5):
            settings["PREALLOCATE"] = "256MiB"
        if given.tight:
            simulated.pop("VMM", None)  # segments have holes that nobody can move
            simulated.pop("PEERS", None)
            settings.update(POLICY="grow", BACKING="pages")
            for name in ("LIMIT", "IPC"):
                settings.pop(name, None)
            per_device = -(-self.threads // self.devices) * self.mib * given.tight + 16
            simulated["MEMORY"] = f"{int(per_device)}MiB"  # natively there is plenty: it rounds to more
        if settings.get("BACKING") == "pages" and (simulated.get("VMM") == "0" or simulated.get("PEERS") == "0"):
            del settings["BACKING"]
        settings.update(setting.split("=", 1) for setting in given.setting)
        base = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_", "CUDA_"))}
        if given.runtime:  # it must be the first library of a process
            base.update(LD_PRELOAD=given.runtime, TSAN_OPTIONS=f"exitcode={SANITIZER_EXIT} atexit_sleep_ms=50")
        here = {**base, "LD_LIBRARY_PATH": str(given.build / "sim"), **{f"CUSIM_{k}": v for k, v in simulated.items()}}
        first = given.runtime or (str(given.preload_first) if given.preload_first else None)
        self.native = {**here, "CUSIM_MEMORY": "8GiB"}
        self.ours = {**here, **{f"CUPOOL_{k}": v for k, v in settings.items()}, 
                     "LD_PRELOAD": " ".join(filter(None, (first, str(given.library or given.build / "libcupool.so"))))}
        self.is_off = policy == "off"
        self.title = f"seed {seed}: {self.threads} threads, {self.mib} MiB each, " + " ".join(f"{k}={v}" for k, v in sorted({**simulated, **settings}.items()))

    def lines(self, env: dict[str, str]) -> list[str]:
        program = self.given.program or self.given.build / "tests" / "preload" / "crowd" / "crowd"
        command = [str(program), *map(str, (self.seed, self.given.steps, self.threads, self.devices, self.mib, 1 if self.given.tight else 0))]
        with tempfile.TemporaryDirectory(prefix="cupool-crowd-") as folder:
            process = subprocess.Popen(command, env={**env, "CUPOOL_REPORT": f"{folder}/report.json"}, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE if self.given.runtime else subprocess.DEVNULL, text=True, errors="replace")
            try:
                text, said = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.communicate()[0].splitlines() + ["does not end"]
            if process.returncode == SANITIZER_EXIT and said:
                print(said)
            lines = text.splitlines() + ([f"ended with {process.returncode}"] if process.returncode else [])
            return lines + (self.broken_report(Path(folder) / "report.json") if env is self.ours and not self.is_off else [])

    @staticmethod
    def broken_report(path: Path) -> list[str]:
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            counters = [device["counters"] for device in report["devices"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [f"a report that cannot be read: {error!r}"]
        if broken := reports.problems_in(path.parent):
            return broken
        left = [{name: c[name]["current"] for name in ("live_blocks", "live_bytes", "requested_bytes", "deferred_bytes")} for c in counters]
        unequal = [c["allocations"] - c["frees"] for c in counters]
        return [f"what the report still has: {left}"] if any(any(row.values()) for row in left) else [f"freed less than allocated: {unequal}"] if any(u < 0 for u in unequal) else []

    def difference(self) -> str | None:
        native, ours = self.lines(self.native), self.lines(self.ours)
        if not native or native[-1].startswith(("ended with", "does not end")):
            return f"natively: {native[-1:]}"
        plain = [[line for line in lines if not line.startswith("violation: cuMemFree")] for lines in (native, ours)]
        for at in range(max(map(len, plain))):
            there, here = (lines[at] if at < len(lines) else "nothing" for lines in plain)
            if here != there or re.search(r"WRONG|OVERLAPS|MORE THAN", here):
                return f"natively {there!r}\n    here     {here!r}"
        return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--tight", type=float)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the library, whatever the seed says")
    parser.add_argument("--only", action="store_true")
    parser.add_argument("--preload-first", type=Path, metavar="LIBRARY")
    parser.add_argument("--runtime", help="of the sanitizer that library and driver are built with: libtsan.so")
    given = parser.parse_args()
    runs = 1 if given.only else given.runs
    differing = 0
    for seed in range(given.seed, given.seed + runs):
        run = Run(given, seed)
        found = run.difference()
        if found is not None:
            differing += 1
            print(f"DIFFERS {run.title}\n    {found}", flush=True)
    print(f"{runs} runs, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
