#!/usr/bin/env python3
"""Explores races: random schedules under the preload, one process per slice; what hits is shrunk to a small schedule and told as a program.

  explore.py --build DIR --steps 1e6 --seed 1 --route mixed --free deferred
  explore.py --build DIR --replay FILE            runs a schedule once more (on both backings unless its head names one), and prints it as a program
Exit: 0 no hit, 1 a hit.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLICE_STEPS = 100_000
BACKINGS = ("segments", "pages")
POOLED = ("grow", "preallocate")
OWN_COUNTERS = ("remaps", "moved_bytes", "vmm_calls")  # of the library's report: did memory move at all?
SLICE_LIMIT_S = 300
REPLAY_LIMIT_S = 60


class Runner:
    """How the program is run: its environment and its fixed arguments. `backing`: of the next runs."""

    def __init__(self, given, folder):
        self.pools = given.policy in POOLED and not given.native
        self.backings = [given.backing] if given.backing != "both" else list(BACKINGS) if self.pools else ["segments"]
        self.backing = self.backings[0]
        self.report = None if given.native else Path(folder) / "report.json"
        self.program = given.build / "tests" / "explorer" / "explorer"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_"))}
        self.env.update(LD_LIBRARY_PATH=str(given.build / "sim"), CUSIM_MEMORY=given.memory, CUSIM_DEVICES=str(given.devices), CUSIM_REUSE_HANDLES="1")
        if given.driver:
            self.env["CUSIM_DRIVER_VERSION"] = given.driver
        if given.note_sync:
            self.env["CUSIM_NOTE_SYNC"] = "1"
        for setting in filter(None, given.simulated.split(";")):
            name, value = setting.split("=", 1)
            self.env[f"CUSIM_{name}"] = value
        if not given.native:
            self.env.update(LD_PRELOAD=str(given.library or given.build / "libcupool.so"), CUPOOL_REPORT=str(self.report), CUPOOL_TIMELINE="16", CUPOOL_LOG="off",
                            CUPOOL_FREE=given.free, CUPOOL_POLICY=given.policy)
            for name, value in (("CUPOOL_LIMIT", given.limit), ("CUPOOL_PREALLOCATE", given.preallocate), ("CUPOOL_RELEASE_THRESHOLD", given.threshold)):
                if value:
                    self.env[name] = value
        self.arguments = ["--devices", str(given.devices)]
        # [?] for which contexts a native free waits: where frees synchronise, cupool waits for those of the whole device and of linked ones.
        if given.free == "sync" or (given.driver and int(given.driver) < 12050):
            self.arguments.append("--sync-frees")
        if given.times != 1:
            self.arguments += ["--times", str(given.times)]
        if given.may_be_kept:
            self.arguments.append("--may-be-kept")
        if given.unlinked:
            self.env["CUSIM_PEERS"] = "0"
            self.arguments.append("--unlinked")
        if given.whole_operations:
            self.arguments.append("--whole-operations")

    def run(self, arguments, limit_s):
        """(exit code, stdout)"""
        if self.report is not None:
            self.env["CUPOOL_BACKING"] = self.backing
            self.report.unlink(missing_ok=True)
        # On segments such a block goes with its context where the driver has no room beside the pool.
        leaves = [] if self.backing == "segments" and self.pools else ["--leaves"]
        command = [str(self.program), *self.arguments, *leaves, *arguments]
        process = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace")
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            return 3, out + "HIT 0 the process does not end\n"
        return process.returncode, out

    def own_counters(self):
        """Sums over the devices, as the last run reported them at its end."""
        try:
            counters = [device["counters"] for device in json.loads(self.report.read_text(encoding="utf-8"))["devices"]]
        except (AttributeError, OSError, ValueError):
            return dict.fromkeys(OWN_COUNTERS, 0)
        return {name: sum(counted.get(name, 0) for counted in counters) for name in OWN_COUNTERS}


def hit_of(code, out):
    """What was hit, or None."""
    for line in out.splitlines():
        if line.startswith("HIT "):
            return line.split(" ", 2)[2]
    return None if code == 0 else f"the process ended with {code}: {out[-300:]}"


def kind_of(hit):
    """Two hits are the same kind when only numbers differ."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", hit)


class Shrinker:
    """Delta debugging over the lines of a schedule, each candidate in a process of its own; then over the numbers in them."""

    def __init__(self, runner, kind, folder, limit_s):
        self.runner, self.kind, self.path = runner, kind, Path(folder) / "candidate.txt"
        self.until = time.monotonic() + limit_s
        self.runs = 0

    def hits(self, lines):
        if time.monotonic() > self.until:
            return False
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.runs += 1
        hit = hit_of(*self.runner.run(["--replay", str(self.path)], REPLAY_LIMIT_S))
        return hit is not None and kind_of(hit) == self.kind

    def fewer_lines(self, lines):
        size = max(1, len(lines) // 2)
        while True:
            at, before = 0, len(lines)
            while at < len(lines):
                rest = lines[:at] + lines[at + size:]
                if rest and self.hits(rest):
                    lines = rest
                else:
                    at += size
            if size == 1 and len(lines) == before:
                return lines
            size = max(1, min(size // 2, len(lines) // 2))

    def without_pairs(self, lines):
        """Two lines that go only together."""
        first = 0
        while first < len(lines) <= 40:
            second = next((at for at in range(first + 1, len(lines)) if self.hits(lines[:first] + lines[first + 1:at] + lines[at + 1:])), None)
            if second is None:
                first += 1
            else:
                lines = lines[:first] + lines[first + 1:second] + lines[second + 1:]
        return lines

    def smaller_numbers(self, lines):
        for index in range(len(lines)):
            for pattern, choices in ((r"(?<= t)\d+", "0"), (r"(?<= c)\d+", "0"), (r"(?<=bytes=)\d+", "512"), (r"(?<=ns=)\d+", "0 100 1000"),
                                     (r"(?<=value=)\d+", "0"), (r"(?<=stream=)\d+", "11 10")):
                for choice in choices.split():
                    changed = re.sub(pattern, choice, lines[index])
                    if changed != lines[index] and self.hits(lines[:index] + [changed] + lines[index + 1:]):
                        lines = lines[:index] + [changed] + lines[index + 1:]
                        break
        return lines

    def shrink(self, lines):
        lines = self.fewer_lines(lines)
        return self.fewer_lines(self.without_pairs(self.fewer_lines(self.smaller_numbers(lines))))


def read_lines(path):
    return [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def shrink(runner, given, hit, dump):
    with tempfile.TemporaryDirectory() as folder:
        shrinker = Shrinker(runner, kind_of(hit), folder, given.shrink_limit)
        lines = read_lines(dump)
        if not shrinker.hits(lines):
            print(f"the schedule does not hit again when it is replayed: {dump}", file=sys.stderr)
            return lines
        began = time.monotonic()
        lines = shrinker.shrink(lines)
        print(f"shrunk to {len(lines)} operations in {shrinker.runs} runs, {time.monotonic() - began:.1f} s", file=sys.stderr)
        return lines


def settings_line(given, backing):
    names = ("free", "policy", "memory", "devices", "limit", "preallocate", "threshold", "driver", "note_sync", "may_be_kept", "unlinked", "simulated")
    return "#! " + " ".join(f"{name}={getattr(given, name)}" for name in names if getattr(given, name)) + f" backing={backing}"


def tell(runner, given, hit, lines, out):
    """The small schedule, as it is stored and as a program."""
    text = [f"# {hit}", settings_line(given, runner.backing), *lines]
    path = Path(out)
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))
    print(runner.run(["--replay", str(path), "--print"], REPLAY_LIMIT_S)[1])
    print(f"written to {path}")


def explore(runner, given):
    total = {"steps": 0, "done": 0, "frees": 0, "allocations": 0, "refused": 0, "pool_records": 0, "pool_queries": 0, "paged_steps": 0,
             **dict.fromkeys(OWN_COUNTERS, 0), "hits": []}
    began = time.monotonic()
    seed = given.seed
    slice_steps = min(SLICE_STEPS, int(-(-given.steps // len(runner.backings))))
    while total["steps"] < given.steps:
        steps = int(min(slice_steps, given.steps - total["steps"]))
        runner.backing = runner.backings[seed % len(runner.backings)]
        dump = Path(given.out) / f"hit.{seed}.txt"
        arguments = ["--seed", str(seed), "--steps", str(steps), "--route", given.route, "--blocks", str(given.blocks), "--dump", str(dump)]
        if runner.backing == "pages" and given.route != "steady":
            arguments.append("--page-sizes")
        code, out = runner.run(arguments, SLICE_LIMIT_S)
        figures = next((json.loads(line) for line in out.splitlines() if line.startswith("{")), {})
        for name in ("allocations", "frees", "refused", "pool_records", "pool_queries"):
            total[name] += figures.get(name, 0)
        total["done"] += figures.get("steps", 0) - figures.get("left_out", 0)
        for name, value in runner.own_counters().items():
            total[name] += value
        if runner.backing == "pages":
            total["paged_steps"] += figures.get("steps", 0)
        hit = hit_of(code, out)
        if hit is None and figures.get("steps", 0) < steps:  # one more when the last has another in its middle
            hit = f"the process ended early: {out[-300:]}"
        if hit is None:
            total["steps"] += steps
            seed += 1
            continue
        step = next((int(line.split()[1]) for line in out.splitlines() if line.startswith("HIT ")), 0)
        total["steps"] += max(1, step)
        total["hits"].append({"seed": seed, "step": step, "backing": runner.backing, "what": hit})
        print(f"HIT seed {seed} step {step} ({runner.backing}): {hit}", file=sys.stderr)
        if given.shrink and dump.exists():
            lines = shrink(runner, given, hit, dump)
            total["hits"][-1]["operations"] = len(lines)
            tell(runner, given, hit, lines, Path(given.out) / f"small.{seed}.txt")
        if len(total["hits"]) >= given.most_hits:
            break
        seed += 1
    total["seconds"] = round(time.monotonic() - began, 2)
    return total


def replay(runner, given):
    worst = 0
    for runner.backing in runner.backings:
        worst = max(worst, replay_once(runner, given))
    return worst


def replay_once(runner, given):
    code, out = runner.run(["--replay", str(given.replay), *(["--print"] if given.print else [])], REPLAY_LIMIT_S)
    print(out, end="")
    figures = next((json.loads(line) for line in out.splitlines() if line.startswith("{")), {})
    wanted = getattr(given, "refused", None)  # in the schedule's head: so many allocations may be out of memory
    if wanted is not None and figures.get("refused", 0) > int(wanted):
        print(f"{figures['refused']} allocations were refused, {wanted} may be")
        return 1
    return 0 if hit_of(code, out) is None else 1


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"), help="the build folder (default: build)")
    parser.add_argument("--library", type=Path, help="another libcupool.so than the build's")
    parser.add_argument("--steps", type=float, default=1e5)
    parser.add_argument("--seed", type=int, default=1, help="of the first slice; each slice of 100,000 steps is a process with the next seed")
    parser.add_argument("--route", choices=("plain", "ordered", "mixed", "steady"), default="mixed")
    parser.add_argument("--free", choices=("deferred", "sync", "immediate"), default="deferred")
    parser.add_argument("--policy", choices=("grow", "preallocate", "async", "platform", "off"), default="grow")
    parser.add_argument("--backing", choices=(*BACKINGS, "both"), default="both", help="both: in turn, by the seed")
    parser.add_argument("--note-sync", action="store_true", help="cuMemUnmap and cuMemSetAccess wait for all work, as they may")
    parser.add_argument("--may-be-kept", action="store_true", help="with --note-sync: the driver may keep the thread that calls it; who waits for that thread hits")
    parser.add_argument("--native", action="store_true", help="without the library: the program itself must never hit")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--unlinked", action="store_true", help="no device reaches another's memory")
    parser.add_argument("--whole-operations", action="store_true", help="no thread is let in at the driver calls of another's operation")
    parser.add_argument("--blocks", type=int, default=48, help="slots for live blocks")
    parser.add_argument("--times", type=int, default=1, help="as large are all blocks, up to 256: on pages handles are larger than a page then, and are cracked")
    parser.add_argument("--memory", default="256MiB", help="of each device")
    for name in ("limit", "preallocate", "threshold", "driver"):
        parser.add_argument(f"--{name}", default="", help="CUSIM_DRIVER_VERSION" if name == "driver" else "the CUPOOL variable")
    parser.add_argument("--simulated", default="", metavar="NAME=VALUE;...", help="more settings of the simulated driver: POOL_STEP=32MiB")
    parser.add_argument("--shrink", action="store_true", help="shrink what hits, and print it as a program")
    parser.add_argument("--shrink-limit", type=float, default=120, help="seconds for each")
    parser.add_argument("--most-hits", type=int, default=1, help="stop after so many")
    parser.add_argument("--out", default=".", help="folder for schedules that hit")
    parser.add_argument("--replay", type=Path, help="a schedule; the settings in its head count")
    parser.add_argument("--print", action="store_true", help="with --replay: as a program")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.replay:
        for line in given.replay.read_text(encoding="utf-8").splitlines():
            for name, value in re.findall(r"(\w+)=(\S+)", line) if line.startswith("#!") else []:
                setattr(given, name, int(value) if name == "devices" else value)
    return given


def main():
    given = parse()
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(given, folder)
        if given.replay:
            return replay(runner, given)
        total = explore(runner, given)
    if given.json:
        print(json.dumps(total))
    frees = max(1, total["frees"])
    where = "native" if given.native else f"{given.policy}/{given.free}"
    print(f"{where} {given.route}, {given.devices} device(s): {total['steps']} steps, {len(total['hits'])} hits, {total['seconds']} s; "
          f"{total['frees']} frees, {total['refused']} refused, {total['pool_records'] / frees:.4f} records and {total['pool_queries'] / frees:.4f} queries per free")
    if total["paged_steps"]:
        print(f"pages: {total['paged_steps']} steps, {total['remaps']} remaps, {total['moved_bytes'] >> 20} MiB moved, {total['vmm_calls']} calls of the driver's")
    return 1 if total["hits"] else 0


if __name__ == "__main__":
    sys.exit(main())
