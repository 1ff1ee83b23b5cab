#!/usr/bin/env python3
"""Every driver call of a full workload fails: at every position, with every code of codes.py, once and from there on.

    run.py --program faults --build BUILD --library libcupool.so [--policy NAME ...] [--all | --every N [--sample] | --slice I/N] [--once] [--seconds S] [--symbol REGEX]
    run.py ... --policy NAME --fault SYMBOL:NTH:CODE[:forever]      one fault, with every result that differs

Exit 0: each run was as judge.py wants it. The last line of a policy: faults injected, calls of the driver, outcomes.
"""
from __future__ import annotations

import argparse
import collections
import concurrent.futures
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True

import judge  # noqa: E402
from codes import NOT_FOR_EVER, OUT_OF_MEMORY, STICKY, codes_for  # noqa: E402
from judge import Fault, Outcome  # noqa: E402

POLICIES = {
    "native": None,
    "deferred": {},
    "preallocate": {"CUPOOL_POLICY": "preallocate", "CUPOOL_PREALLOCATE": "32MiB"},
    "async": {"CUPOOL_POLICY": "async"},
    "platform": {"CUPOOL_POLICY": "platform"},
    "sync": {"CUPOOL_FREE": "sync"},
    "limit": {"CUPOOL_LIMIT": "160MiB"},
    "threshold": {"CUPOOL_RELEASE_THRESHOLD": "0"},
    "pages": {"CUPOOL_BACKING": "pages", "CUPOOL_LIMIT": "160MiB"},
    "old_driver": {"CUSIM_MISSING": "cuCtxRecordEvent,cuCtxWaitEvent"},  # before CUDA 12.5 no event covers a context
}
WORKERS = 2
SHOWN = 40
# Without faults a policy shows what the bare driver does, but for these calls, and those that run into the end of memory.
DIFFERS = {"async": r"cuIpc.*", "pages": r"cuIpc.*"}  # neither memory of a driver's pool nor blocks on pages have such a handle (yet)
# The sample that ctest runs has every position of these, by policy: few calls each, and where faults came out wrong once.
SAMPLED = {
    "deferred": r"cuDevicePrimaryCtxGetState|cuDevicePrimaryCtxRetain|cuStreamGetCtx|cuCtxGetDevice|cuCtxEnablePeerAccess",
    "async": r"cuMemPoolSetAccess|cuDeviceGetDefaultMemPool|cuMemPoolTrimTo",
    "old_driver": r"cuEventRecord|cuCtxSynchronize",
}


class Server:
    """One program that waits for faults; the folder where its children leave reports and logs."""

    def __init__(self, given: argparse.Namespace, policy: str, scratch: Path):
        self.folder = Path(tempfile.mkdtemp(prefix=f"{policy}-", dir=scratch))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_", "CUDA_", "LD_"))}
        env.update(LD_LIBRARY_PATH=str(given.build / "sim"), CUSIM_DEVICES="2", CUSIM_MEMORY="192MiB", CUSIM_LOG=f"{self.folder}/%p.log")
        self.in_drivers_pool = policy == "async"
        if POLICIES[policy] is not None:
            env.update(POLICIES[policy], LD_PRELOAD=str(given.library), CUPOOL_REPORT=f"{self.folder}/%p.json", CUPOOL_LOG="off", CUPOOL_TIMELINE="16")
        self.process = subprocess.Popen([str(given.program)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, line: str) -> str:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the program ended at {line}")
        return answer

    def run(self, setting: str) -> Outcome:
        return Outcome(self.ask(setting))

    def log(self, run: Outcome) -> Path:
        return self.folder / f"{run.pid}.log"

    def report(self, run: Outcome) -> Path:
        return self.folder / f"{run.pid}.json"

    def clean(self, run: Outcome) -> None:
        for path in self.folder.glob(f"{run.pid}.*"):
            path.unlink()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class Native:
    """What the bare driver's run shows at each position, under faults of the program's own calls. Asked when a result needs an excuse."""

    def __init__(self, given: argparse.Namespace, scratch: Path):
        self.server = Server(given, "native", scratch)
        self.base = self.server.run("-")
        self.symbols = self.server.ask("symbols").split()
        self.seen: dict[Fault, tuple[Outcome, int]] = {}
        self.lock = threading.Lock()

    def runs(self, fault: Fault, hit: int) -> list[tuple[Outcome, int]]:
        """With the driver's violations: under the same fault by the program's own call at `hit`, or, for a call that the program does not make
        there, by the failing of that call."""
        found = []
        with self.lock:
            for symbol in {fault.symbol, self.symbols[hit].rstrip("*")}:
                for late in (0, 1):  # the call met at `hit` natively is the one there, or the next of that name
                    nth = sum(1 for at in range(hit) if self.symbols[at].rstrip("*") == symbol and self.base.codes[at] != judge.LEFT_OUT) + 1 + late
                    own = Fault(symbol, nth, fault.code, fault.forever)
                    if own not in self.seen:
                        run = self.server.run(own.setting())
                        self.seen[own] = run, len(judge.violations(self.server.log(run)))
                        self.server.clean(run)
                    found.append(self.seen[own])
        return found


def faults_of(calls: dict[str, int], host_requests: int, policy: str, given: argparse.Namespace) -> list[Fault]:
    every = [Fault(judge.HOST_MEMORY, nth, OUT_OF_MEMORY, forever) for forever in (False, True)[:1 if given.once else 2] for nth in range(1, host_requests + 1)
             if re.fullmatch(given.symbol, judge.HOST_MEMORY)]
    for symbol, count in sorted(calls.items()):
        if not re.fullmatch(given.symbol, symbol):
            continue
        for nth in range(1, count + 1):
            for code in codes_for(symbol):
                every.append(Fault(symbol, nth, code, False))
                if code != STICKY and not given.once and not NOT_FOR_EVER.fullmatch(symbol):
                    every.append(Fault(symbol, nth, code, True))
    random.Random(7).shuffle(every)
    if given.slice:
        part, parts = map(int, given.slice.split("/"))
        return every[part - 1::parts]
    if given.all:
        return every
    sampled = re.compile(SAMPLED.get(policy, "") if given.sample else "")
    return [fault for at, fault in enumerate(every) if at % given.every == 0 or sampled.fullmatch(fault.symbol)]


def judge_run(server: Server, native: Native, fault: Fault, run: Outcome, base: Outcome, may_report: bool) -> list[str]:
    broken = judge.judge_end(run)
    if broken:
        return broken
    found = judge.judge_driver(fault, run, base, native.symbols, server.log(run), [], server.in_drivers_pool)
    if found and run.hit >= 0:  # only now is the bare driver asked
        found = judge.judge_driver(fault, run, base, native.symbols, server.log(run), native.runs(fault, run.hit), server.in_drivers_pool)
    return found + (judge.judge_report(server.report(run), run, fault, native.symbols) if may_report else [])


def kind_of(fault: Fault, run: Outcome, base: Outcome, symbols: list[str]) -> str:
    if run.hit < 0:
        return "not met"
    differs = any(got != was and not symbols[at].endswith("*") and got not in (judge.LEFT_OUT, 0) for at, (got, was) in enumerate(zip(run.codes, base.codes)))
    return "reported" if differs else "recovered"


def run_policy(given: argparse.Namespace, policy: str, native: Native, scratch: Path) -> int:
    servers = [Server(given, policy, scratch) for _ in range(WORKERS)]
    base = servers[0].run("-")
    calls = judge.json.loads(servers[0].log(base).read_text())["calls"]
    symbols = native.symbols
    by_program = collections.Counter(symbols[at].rstrip("*") for at, mark in enumerate(base.reached) if mark == "1")
    faults = faults_of(calls, base.host_requests, policy, given)
    different = [f"{policy} without a fault: position {at} {symbol}: {got}, natively {was}" for at, (symbol, got, was) in enumerate(zip(symbols, base.codes, native.base.codes))
                 if got != was and not symbol.endswith("*") and judge.LEFT_OUT not in (got, was) and not re.fullmatch(DIFFERS.get(policy, ""), symbol)]
    kinds: collections.Counter = collections.Counter()
    different += judge.violations(servers[0].log(base))
    broken: list[str] = list(different)
    until = time.monotonic() + given.seconds

    def work(server: Server, part: list[Fault]) -> None:
        for fault in part:
            if time.monotonic() > until:
                return
            run = server.run(fault.setting())
            found = judge_run(server, native, fault, run, base, policy != "native")
            kinds["wrong" if found else kind_of(fault, run, base, symbols)] += 1
            sentences = [f"{policy} {fault.setting().replace(f':{judge.FOREVER}', ':forever')}: {sentence}" for sentence in found]
            broken.extend(sentences)
            if given.verbose:
                print(*(f"BROKEN {sentence}\n" for sentence in sentences), sep="", end="", flush=True)
            server.clean(run)

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        for done in [pool.submit(work, server, faults[i::WORKERS]) for i, server in enumerate(servers)]:
            done.result()
    for server in servers:
        server.close()
    for sentence in different if given.verbose else broken if given.all or given.slice else broken[:SHOWN]:
        print(f"BROKEN {sentence}")
    total, own = sum(calls.values()), sum(by_program.values())
    print(f"{policy}: {sum(kinds.values())} of {len(faults)} faults injected into {total} driver calls of {len(calls)} symbols ({total - own} by the library): "
          + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()), flush=True)
    return 1 if broken else 0


def run_one(given: argparse.Namespace, policy: str, native: Native, scratch: Path) -> int:
    symbol, nth, code, *rest = given.fault.split(":")
    fault = Fault(symbol, int(nth), STICKY if "sticky" in rest else int(code), "forever" in rest)
    server = Server(given, policy, scratch)
    base, run = server.run("-"), server.run(fault.setting())
    for at, (got, was) in enumerate(zip(run.codes, base.codes)):
        if got != was:
            print(f"{at} {native.symbols[at]}: {got}, without the fault {was}{' (met here)' if at == run.hit else ''}")
    found = judge_run(server, native, fault, run, base, policy != "native")
    print(run.facts, *found, sep="\n")
    server.close()
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("program", "build", "library"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--policy", choices=list(POLICIES), nargs="+", default=list(POLICIES))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--every", type=int, default=400, help="one fault in so many (400)")
    parser.add_argument("--sample", action="store_true", help="and all of SAMPLED")
    parser.add_argument("--slice", help="the I-th of N parts of all, in an order that never changes")
    parser.add_argument("--seconds", type=float, default=1e9, help="end a policy after so long")
    parser.add_argument("--once", action="store_true", help="no faults that last: those can cost a second's polling each")
    parser.add_argument("--symbol", default=".*")
    parser.add_argument("--fault")
    parser.add_argument("--verbose", action="store_true", help="print every wrong run, at once")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="cupool-faults-"))
    try:
        native = Native(given, scratch)
        run = run_one if given.fault else run_policy
        return max([run(given, policy, native, scratch) for policy in given.policy])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
