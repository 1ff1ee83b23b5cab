"""Judges one run of the workload under one fault: sentences of what is wrong, or none.

A result is right when it is that of the run without faults; the injected code, from the call that failed natively as well; the code of
earlier work; out-of-memory from a call that takes memory when memory was what the driver refused; or what the bare driver shows at this
position under the same fault (consequences).
"""
from __future__ import annotations

import collections
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from codes import ILLEGAL_ADDRESS, NEEDS_HOST_MEMORY, NO_PEER_ACCESS, OF_EARLIER_WORK, OUT_OF_MEMORY, POOL_ACCESS, STICKY, SUCCESS, TAKES_MEMORY, TELLS_OF_WORK, is_same_call

import reports

LEFT_OUT = -1
STARTS = re.compile(r"cuInit|cuDriverGetVersion|cuDeviceGetCount")
FOREVER = 1_000_000_000
HOST_MEMORY = "host"  # as a symbol: what the library asks the host for
FIELDS = ("status", "pid", "hit", "overlaps", "mismatched", "unended", "uncertain", "kept", "allocated", "second_life", "host_requests", "freed0", "freed1", "ended0", "ended1")


@dataclass(frozen=True)
class Fault:
    symbol: str
    nth: int
    code: object  # a number, or STICKY
    forever: bool

    def setting(self) -> str:
        if self.code == STICKY:
            return f"{self.symbol}:{self.nth}:{ILLEGAL_ADDRESS}:sticky"
        return f"{self.symbol}:{self.nth}:{self.code}:{FOREVER if self.forever else 1}"

    @property
    def number(self) -> int:
        return ILLEGAL_ADDRESS if self.code == STICKY else self.code

    @property
    def lasts(self) -> bool:
        return self.forever or self.code == STICKY


class Outcome:
    def __init__(self, line: str):
        numbers, codes, reached = line.split("|")
        self.facts = dict(zip(FIELDS, map(int, numbers.split())))
        self.codes = list(map(int, codes.split()))
        self.reached = reached.strip()

    def __getattr__(self, name: str) -> int:
        return self.facts[name]


def is_allowed(fault: Fault, symbol: str, got: int, at: int, hit: int) -> bool:
    """May the call at position `at` answer `got` because of the fault, which was met first at `hit`?"""
    if at < hit or (at > hit and not fault.lasts):
        return False
    if got == fault.number and (is_same_call(fault.symbol, symbol) or got in OF_EARLIER_WORK):
        return True
    if got == NO_PEER_ACCESS and symbol == "cuCtxEnablePeerAccess" and fault.forever and POOL_ACCESS.fullmatch(fault.symbol):
        return True
    # Pages have the access that they are given; a request for access that the driver refuses again and again is refused.
    if got == fault.number and fault.forever and fault.symbol == "cuMemSetAccess" and symbol in ("cuCtxEnablePeerAccess", "cuMemPoolSetAccess"):
        return True
    if got == OUT_OF_MEMORY and fault.symbol == HOST_MEMORY:
        return bool(NEEDS_HOST_MEMORY.fullmatch(symbol) or TAKES_MEMORY.fullmatch(symbol))
    if got != OUT_OF_MEMORY or not TAKES_MEMORY.fullmatch(symbol):
        return False
    # Of an error of earlier work and a full device (or a limit) either may be told first.
    # Memory was refused; or nobody can ever tell again that work is over, so that what was freed cannot be used.
    return fault.code == STICKY or (fault.code == OUT_OF_MEMORY and bool(TAKES_MEMORY.fullmatch(fault.symbol))) or (fault.forever and bool(TELLS_OF_WORK.fullmatch(fault.symbol)))


def judge_results(fault: Fault, run: Outcome, base: Outcome, symbols: list[str], native: dict[int, set[int]]) -> list[str]:
    broken = []
    for at, got in enumerate(run.codes):
        symbol = symbols[at].rstrip("*")
        if got in (base.codes[at], LEFT_OUT) or (symbols[at].endswith("*") and got in (SUCCESS, OUT_OF_MEMORY)):
            continue
        if base.codes[at] == LEFT_OUT and got == SUCCESS:  # a second attempt after a refusal
            continue
        if got in native.get(at, ()) or is_allowed(fault, symbol, got, at, run.hit):
            continue
        broken.append(f"position {at} {symbol}: {got}, without the fault {base.codes[at]} (met at {run.hit} {symbols[run.hit] if run.hit >= 0 else '-'})")
    if len(run.codes) != len(base.codes):
        broken.append(f"{len(run.codes)} positions, without the fault {len(base.codes)}")
    return broken[:4]


def judge_memory(fault: Fault, run: Outcome, base: Outcome, natives: list[Outcome], in_drivers_pool: bool) -> list[str]:
    broken = []
    kept_bytes = max([native.ended0 + native.ended1 for native in natives], default=0)  # by a free that always fails: memory pools outlive contexts
    # A broken context writes nothing, and another's check then finds what was there before.
    lost_writes = max([native.mismatched for native in natives], default=0) if fault.code == STICKY else 0
    if run.overlaps or run.mismatched > lost_writes:
        broken.append(f"{run.overlaps} blocks overlap, {run.mismatched} bytes were written by somebody else")
    # Where plain memory lies in the driver's pool too (`async`), cuCtxDestroy leaves it, and a context that is broken takes none of it back.
    is_left = in_drivers_pool and fault.code == STICKY
    if not run.unended and not is_left and run.ended0 + run.ended1 > kept_bytes:
        broken.append(f"every context has ended, and {run.ended0} + {run.ended1} bytes are still taken")
    if not fault.lasts and not run.uncertain and not run.kept and (run.freed0 > base.freed0 or run.freed1 > base.freed1):
        broken.append(f"all is freed and trimmed, and {run.freed0} + {run.freed1} bytes are taken, without the fault {base.freed0} + {base.freed1}")
    if not fault.forever and not run.unended and not run.second_life and base.second_life and run.codes[-5:] != base.codes[-5:] and run.hit < len(run.codes) - 8:
        broken.append("the device could not be used again")
    return broken


def judge_report(path: Path, run: Outcome, fault: Fault, symbols: list[str]) -> list[str]:
    """`path`: where the exit report has to be when the pool gave memory."""
    if not path.exists():
        steps_aside = bool(STARTS.fullmatch(fault.symbol))  # a driver that does not even tell its version gets no pool
        if fault.symbol == HOST_MEMORY:  # nor does a program whose memory is out before it has a context; and a report needs some
            steps_aside = run.hit < 0 or "cuDevicePrimaryCtxRetain" not in symbols[:run.hit + 1]
        return ["no report"] if run.allocated and not fault.lasts and not steps_aside else []
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return [f"the report is no JSON: {error}"]
    if broken := reports.problems(report):
        return broken
    for device in report["devices"]:
        counters = device["counters"]
        if counters["live_blocks"]["current"] > run.kept + run.uncertain + run.unended * 1000:
            broken.append(f"GPU {device['ordinal']}: {counters['live_blocks']['current']} live blocks at the end, the program holds {run.kept + run.uncertain}")
        if not run.unended and counters["reserved_bytes"]["current"]:
            broken.append(f"GPU {device['ordinal']}: {counters['reserved_bytes']['current']} bytes reserved after every context has ended")
        outside = {part: n for part, n in device["ledger"].items() if n and part in ("arrays", "program_vmm", "managed")}
        if not fault.lasts and outside and not run.unended:
            broken.append(f"GPU {device['ordinal']}: the ledger still has {outside}")
    return broken


def violations(path: Path) -> list[str]:
    if not path.exists():
        return ["the driver wrote no log: the process did not end by exit"]
    return json.loads(path.read_text(encoding="utf-8"))["violations"]


def judge_driver(fault: Fault, run: Outcome, base: Outcome, symbols: list[str], log: Path, natives: list[tuple[Outcome, int]], in_drivers_pool: bool) -> list[str]:
    """`natives`: what the bare driver shows under such a fault, and how many violations it noted: the workload's own doing."""
    seen: dict[int, set[int]] = collections.defaultdict(set)
    for native, _ in natives:
        for at, code in enumerate(native.codes):
            seen[at].add(code)
    said = violations(log)
    broken = judge_results(fault, run, base, symbols, seen) + judge_memory(fault, run, base, [native for native, _ in natives], in_drivers_pool)
    if len(said) > max([count for _, count in natives], default=0):
        broken.append(f"the driver saw: {said[0]} ({len(said)} in all)")
    return broken


def judge_end(run: Outcome) -> list[str]:
    if run.status == 0:
        return []
    if os.WIFSIGNALED(run.status):
        signal = os.WTERMSIG(run.status)
        return ["it hung" if signal == 14 else f"it died by signal {signal}"]
    return [f"it ended with {os.WEXITSTATUS(run.status)}"]
