"""The page heap on the real driver: what preallocating 75% costs, and recorded jobs at limits so tight that pages must move, data verified."""

from __future__ import annotations

import json
from typing import Any, Callable

import outcome
import reports
from outcome import Outcome
from place import ROOT, Place

TRACES = ("e3_gpt_ckpt_accum_real", "g2_finetune_offload_varlen_skel", "minimalloc_A_x4096")
TIGHTNESS = 1.08  # x the job's peak
FIGURES = ("reserved_bytes", "rung_remap", "remaps", "moved_bytes", "handles_created", "vmm_calls", "vmm_ns", "native_fallbacks")


def _figures(place: Place, pattern: str) -> tuple[str, dict[str, Any]]:
    """Of the one report that matches: what is wrong with it, and the page heap's counters."""
    fault, seen = reports.judge(place, pattern, 1)
    if fault:
        return fault, {}
    device = json.loads(reports.files(pattern)[0].read_text(encoding="utf-8"))["devices"][0]
    if seen["backing"] != "pages":
        return f"the backing was {seen['backing']}", {}
    values = {name: device["counters"][name] for name in FIGURES}
    return "", {name: value["peak"] if isinstance(value, dict) else value for name, value in values.items()}


def _replay(place: Place, limit_s: float, trace: str, **settings: str) -> tuple[str, dict[str, Any]]:
    report = str(place.scratch / f"pages-{trace}-{len(settings)}.%p.json")
    command = [str(place.build / "bench" / "replay"), "--verify", "--json", str(ROOT / "tests" / "bench" / "traces" / f"{trace}.trace.gz")]
    memory = {"CUSIM_MEMORY": "16GiB"} if place.simulated else {}
    ended = place.run(command, limit_s, place.shim_environment(report, CUPOOL_BACKING="pages", **memory, **settings))
    if ended.code != 0:
        return ended.reason(), {}
    fault, figures = _figures(place, report.replace("%p", "*"))
    return fault, {**figures, **json.loads(ended.output.splitlines()[-1])} if not fault else {}


def tight_part() -> Callable[[Place, float], Outcome]:
    """Each job once with all the memory, which tells its peak, and once with little more than that."""
    def run(place: Place, limit_s: float) -> Outcome:
        if not (place.build / "bench" / "replay").is_file():
            return outcome.skipped(f"{place.build}/bench/replay was not built")
        answers: list[dict[str, Any]] = []
        for trace in TRACES[:1] if place.simulated else TRACES:
            fault, wide = _replay(place, limit_s / (2 * len(TRACES)), trace)
            if not fault:
                limit = int(wide["peak_live_bytes"] * TIGHTNESS) // 512 * 512
                fault, tight = _replay(place, limit_s / (2 * len(TRACES)), trace, CUPOOL_LIMIT=str(limit))
            if fault:
                return outcome.failed(f"{trace}: {fault}", answers)
            answers += [{"question": f"{trace}, all the memory", "answer": wide}, {"question": f"{trace}, {TIGHTNESS} x its peak", "answer": tight}]
        return Outcome(outcome.PASSED, "", answers)
    return run


def preallocation_part() -> Callable[[Place, float], Outcome]:
    def run(place: Place, limit_s: float) -> Outcome:
        program = place.program("verify_shared")
        if program is None:
            return outcome.skipped(f"{place.build}/gpu/verify_shared was not built")
        report = str(place.scratch / "pages-preallocated.%p.json")
        settings = {"CUPOOL_BACKING": "pages", "CUPOOL_POLICY": "preallocate", "CUPOOL_PREALLOCATE": "75%"}
        ended = place.run([str(program)], limit_s, place.shim_environment(report, **settings))
        if ended.code != 0:
            return outcome.failed(ended.reason())
        fault, figures = _figures(place, report.replace("%p", "*"))
        if fault:
            return outcome.failed(fault)
        if figures["vmm_calls"] > 1000:
            return outcome.failed(f"{figures['vmm_calls']} calls of virtual memory management; at most 1000 are meant", [{"question": "figures", "answer": figures}])
        return Outcome(outcome.PASSED, "", [{"question": "75% of the device preallocated as pages", "answer": figures}])
    return run
