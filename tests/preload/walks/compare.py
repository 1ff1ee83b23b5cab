#!/usr/bin/env python3
"""Random walks of a correct program, natively and under the library: every answer must be the same.

    compare.py --build BUILD [--library FILE] [--seed 1] [--walks 20] [--steps 1500] [--shrink]
    compare.py --build BUILD --seed N --only                  that walk alone, with its settings

The seed gives the walk, the settings of the simulated driver and those of the library. What differs is printed with the lines
before it; --shrink leaves out steps until nothing more can go. Exit: 0 no difference, 1 a difference.
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
CONTEXT_LINES = 12
SIMULATED = {"GRANULARITY": ["2MiB", "4MiB", "2MiB,4MiB"], "VMM_FD": ["0", "refused"], "VMM_RDMA": ["0", "refused"], "VMM_RANGE": ["0"], "PEERS": ["0"],
             "NOTE_SYNC": ["1"], "REUSE_HANDLES": ["1"], "COPY_NS": ["0", "50000"], "CONTEXT_BYTES": ["4MiB"], "THREAD_STREAMS": ["end"], "VMM": ["0"],
             "POOL_STEP": ["2MiB", "32MiB"], "RESET_LEAVES_POOLS": ["1"], "VARIABLE_BYTES": ["3MiB"]}
VERSIONS = ["13040", "13030", "13000", "12080", "12050", "12040", "12000", "11080"]
SETTINGS = {"BACKING": ["pages", "segments"], "FREE": ["sync"], "RELEASE_THRESHOLD": ["1MiB", "64MiB"], "TIMELINE": ["0", "100"], "IPC": ["native"],
            "STACKS": ["off"], "LIMIT": ["6GiB"]}
POLICIES = ["grow", "grow", "grow", "preallocate", "async", "platform", "off"]

# What may differ, with the reason; (policies, pattern natively, what both become).
MASKS = [
    (POLICIES, r"alignment=\d+| peak=\d+", ""),
    # `async`: plain blocks lie in the driver's default pool, which says what it is.
    (["async"], r"(ipc|rdma|used|threshold|pool_access)=\d+", r"\1"),
]
LIMIT_MASK = ([], r"(total|bytes)=(8589934592|6442450944)", "total")


def draw(rng: random.Random, table: dict[str, list[str]], chance: float) -> dict[str, str]:
    return {name: rng.choice(values) for name, values in table.items() if rng.random() < chance}


class Walker:
    def __init__(self, given: argparse.Namespace, seed: int):
        rng = random.Random(seed)
        self.given, self.seed = given, seed
        self.devices = rng.choice([1, 2, 2, 3])
        self.policy = given.policy or rng.choice(POLICIES)
        simulated = {**draw(rng, SIMULATED, .15), "DEVICES": str(self.devices), "MEMORY": "8GiB", "DRIVER_VERSION": rng.choice(VERSIONS)}
        if given.tight:
            simulated.pop("VMM", None)  # segments have holes that nobody can move
            simulated.pop("PEERS", None)
        settings = {**draw(rng, SETTINGS, .3), "POLICY": self.policy, "LOG": "off"}
        # Tight, one block in what the driver's pool was primed with keeps all of it: the simulated pool gives whole pieces back.
        if self.policy == "preallocate" or (self.policy == "async" and not given.tight and rng.random() < .3):
            settings["PREALLOCATE"] = "256MiB"
        if settings.get("BACKING") == "pages" and (simulated.get("VMM") == "0" or simulated.get("PEERS") == "0"):
            del settings["BACKING"]
        if given.tight:
            settings["BACKING"] = "pages"
        settings.update(setting.split("=", 1) for setting in given.setting)
        base = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_", "CUDA_"))}
        self.native = {**base, "LD_LIBRARY_PATH": str(given.build / "sim"), **{f"CUSIM_{k}": v for k, v in simulated.items()}}
        self.ours = {**self.native, **{f"CUPOOL_{k}": v for k, v in settings.items()}, "LD_PRELOAD": str(given.library or given.build / "libcupool.so")}
        self.masks = [mask for mask in MASKS if self.policy in mask[0]]
        if settings.get("LIMIT") == "6GiB":
            self.masks.append(LIMIT_MASK)
        if "VMM_RDMA" in simulated:
            self.masks.append(([], r"rdma=\d", "rdma"))  # the pages have no such flag then, and say so
        self.title = f"seed {seed}: " + " ".join(f"{k}={v}" for k, v in sorted({**simulated, **settings}.items()) if k not in ("LOG", "MEMORY"))

    def tighten(self, factor: float) -> None:
        """Each device has `factor` times what the walk needs of it natively, and the clock follows real time: whoever waits for work finds its end."""
        lines = self.lines(self.native, [])
        needs = [int(peak) for line in lines if line.startswith(("end:", "exit of")) for peak in re.findall(r"peak=(\d+)", line)]
        if len(needs) != self.devices:
            raise RuntimeError(f"{self.title}: the walk did not end natively: {lines[-1:]}")
        memory = ",".join(str((int(peak * factor) + (16 << 20)) >> 20 << 20) for peak in needs)
        for env in (self.native, self.ours):
            env.update(CUSIM_MEMORY=memory, CUSIM_CLOCK="real")
        self.title += f" tight: {memory}"

    def lines(self, env: dict[str, str], left_out: list[str]) -> list[str]:
        program = self.given.build / "tests" / "preload" / "walks" / "walks"
        command = [str(program), str(self.seed), str(self.given.steps), str(self.devices), "1" if self.given.tight else "0", *left_out]
        with tempfile.TemporaryDirectory(prefix="cupool-walks-") as folder:
            process = subprocess.Popen(command, env={**env, "CUPOOL_REPORT": f"{folder}/%p.json"}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace")
            try:
                text, _ = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.communicate()[0].splitlines() + ["does not end"]
            lines = text.splitlines() + ([f"ended with {process.returncode}"] if process.returncode else [])
            return lines + (self.broken_report(Path(folder), process.pid, lines) if env is self.ours else [])

    def broken_report(self, folder: Path, pid: int, lines: list[str]) -> list[str]:
        """What is wrong with the report, as lines that no native run has. Children that did nothing leave none."""
        if self.policy == "off" or not any(re.search(r"->0 b\d", line) for line in lines):
            return []
        found = sorted(path.name for path in folder.iterdir())
        if found != [f"{pid}.json"]:
            return [f"reports: {found}"]
        try:
            report = json.loads((folder / found[0]).read_text(encoding="utf-8"))
            left = [device["counters"]["live_blocks"]["current"] for device in report["devices"]]
        except (ValueError, KeyError, TypeError) as error:
            return [f"a report that cannot be read: {error!r}"]
        if broken := reports.problems_in(folder):
            return broken
        is_complete = any(line.startswith("end:") for line in lines)
        return [f"blocks that the report still has: {left}"] if is_complete and any(left) else []

    def masked(self, lines: list[str]) -> list[str]:
        for _, pattern, instead in self.masks:
            lines = [re.sub(pattern, instead, line) for line in lines]
        return lines

    @staticmethod
    def violations(lines: list[str]) -> set[str]:
        # a wrong free, which the program makes on purpose, is told by where it lies
        return {re.sub(r"0x[0-9a-f]+|\d+|(?<=cuMemFree)(Async)?(_v2)? of an address.*", "#", line) for line in lines if line.startswith("violation:")}

    def difference(self, left_out: list[str]) -> tuple[str, list[str]] | None:
        """What differs first, in one line, and the lines up to it."""
        native, ours = self.lines(self.native, left_out), self.lines(self.ours, left_out)
        if any(line.startswith(("ended with -", "does not end")) for line in native):
            return f"natively: {native[-1]}", []  # the program's own fault, or the simulated driver's
        native_left = [line for line in native if not line.startswith("violation:")]
        ours_left = [line for line in ours if not line.startswith("violation:")]
        shown, own = self.masked(native_left), self.masked(ours_left)
        for at in range(max(len(shown), len(own))):
            here, there = own[at] if at < len(own) else "nothing", shown[at] if at < len(shown) else "nothing"
            if here != there or " WRONG" in here or " OVERLAPS" in here:
                return f"natively {there!r}\n    here     {here!r}", ours_left[:at]
        broken = self.violations(ours) - self.violations(native)
        return ("\n".join(sorted(broken)), ours_left) if broken else None

    def kind(self, difference: tuple[str, list[str]]) -> str:
        return re.sub(r"0x[0-9a-f]+|\d+", "#", re.sub(r"'\d+ ", "'", difference[0]).replace("->", "->_"))[:60]

    def shrink(self, first: tuple[str, list[str]]) -> tuple[tuple[str, list[str]], list[str]]:
        numbers = [int(m.group(1)) for line in first[1] if (m := re.match(r"(\d+) t", line))]
        match = re.search(r"'(\d+) t", first[0])
        last = int(match.group(1)) if match else self.given.steps - 1
        kept, best, wanted = sorted({*numbers, last}), first, self.kind(first)

        def gaps(steps: list[int]) -> list[str]:
            edges = [-1, *steps, self.given.steps]
            return [f"{a + 1}-{b - 1}" for a, b in zip(edges, edges[1:]) if b - a > 1]

        size = max(1, len(kept) // 2)
        while True:
            at, before = 0, len(kept)
            while at < len(kept):
                rest = kept[:at] + kept[at + size:]
                found = self.difference(gaps(rest)) if rest else None
                if found is not None and self.kind(found) == wanted:
                    kept, best = rest, found
                else:
                    at += size
            if size == 1 and len(kept) == before:
                return best, gaps(kept)
            size = max(1, size // 2)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--policy", choices=sorted(set(POLICIES)))
    parser.add_argument("--tight", type=float, help="devices of so many times what the walk needs natively, and 16 MiB")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the library, whatever the seed says")
    parser.add_argument("--only", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    given = parser.parse_args()
    differing = 0
    for seed in range(given.seed, given.seed + (1 if given.only else given.walks)):
        walker = Walker(given, seed)
        if given.tight:
            walker.tighten(given.tight)
        found = walker.difference([])
        if found is None:
            continue
        differing += 1
        left_out: list[str] = []
        if given.shrink:
            found, left_out = walker.shrink(found)
        print(f"DIFFERS {walker.title}")
        print("\n".join(f"    {line}" for line in found[1][-CONTEXT_LINES * (4 if given.shrink else 1):]))
        print(f"    {found[0]}")
        if left_out:
            print(f"    walks {seed} {given.steps} {walker.devices} {1 if given.tight else 0} {' '.join(left_out)}")
    print(f"{given.walks if not given.only else 1} walks, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
