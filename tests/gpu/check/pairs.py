"""What one allocation and its free cost by every way that is there, in one run: the driver's own, PyTorch's, CuPy's, RMM's, and the
pool's. Goal: each of the pool's ways below every peer's. Ways that only an interpreter can call are shown and not compared with."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, Callable

import goals
import outcome
from outcome import Outcome
from place import ROOT, Place, nvcc
from training import python_with

POOL = "cupool"
THROUGH_PYTHON = "through Python"
_WAYS = {  # what the probe's ways are called when the pool serves them; the release threshold is then the pool's own
    "cuMemAlloc": f"{POOL}, cuMemAlloc", "cuMemAllocAsync, threshold unlimited": f"{POOL}, cuMemAllocAsync",
    "cuMemAllocAsync, threshold unlimited, synchronised every 64": f"{POOL}, cuMemAllocAsync, synchronised every 64"}
PAIR = re.compile(r"pair cost: (?P<who>.*), (?P<shape>\d+ KiB, \d+ threads?)")
# One thread: another would wait for the interpreter's lock, not for the pool.
_PYTHON_PAIRS = """
import json, sys, time
sys.path.insert(0, {folder!r})
from told import tell
def measure(who, take, give):
    for size in (1024, 256 << 10, 4 << 20):
        rounds = []
        for _ in range(10):
            blocks = [take(size) for _ in range(64)]
            start, pairs = time.perf_counter_ns(), 0
            while time.perf_counter_ns() - start < 20_000_000:
                for i in range(64):
                    give(blocks[i], size)
                    blocks[i] = None
                    blocks[i] = take(size)
                pairs += 64
            rounds.append((time.perf_counter_ns() - start) // pairs)
            for i in range(64):
                give(blocks[i], size)
                blocks[i] = None
        rounds = sorted(rounds[1:])
        at = lambda percent: rounds[(len(rounds) - 1) * percent // 100]
        tell(f"pair cost: {{who}}, {{size >> 10}} KiB, 1 thread", {{"median_ns": at(50), "p10_ns": at(10), "p90_ns": at(90), "count": len(rounds)}})
"""
_CUPY = """
import cupy
cupy.cuda.Device(0).use()
pool = cupy.cuda.MemoryPool()
measure("CuPy's pool, through Python", pool.malloc, lambda block, size: None)  # dropping the pointer frees
"""
_RMM = """
import rmm
def both(resource):
    return resource.allocate, lambda block, size: resource.deallocate(block, size)
measure("RMM's pool, through Python", *both(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 30)))
measure("RMM's async resource, through Python", *both(rmm.mr.CudaAsyncMemoryResource()))
"""


class Costs:
    """Everything that was measured: (who, shape) -> median; the answers, and what could not be."""

    def __init__(self) -> None:
        self.median_ns: dict[tuple[str, str], float] = {}
        self.answers: list[dict[str, Any]] = []

    def add(self, result: Outcome, rename: dict[str, str] | None = None) -> None:
        for one in result.answers:
            found = PAIR.fullmatch(one["question"])
            who = found["who"] if found else ""
            if not found or (rename is not None and who not in rename):
                continue
            who = rename[who] if rename else who
            self.answers.append({**one, "question": f"pair cost: {who}, {found['shape']}"})
            if "answer" in one:
                self.median_ns[who, found["shape"]] = one["answer"]["median_ns"]

    def leave_out(self, who: str, why: str) -> None:
        self.answers.append({"question": f"pair cost: {who}", "left_out": why})

    def goals(self, simulated: bool) -> list[goals.Goal]:
        found = []
        shapes = list(dict.fromkeys(shape for _, shape in self.median_ns))
        for way in _WAYS.values():
            synchronised = way.endswith("every 64")
            for shape in shapes:
                # What synchronises pays for it in every pool: like with like.
                peers = {who: cost for (who, at), cost in self.median_ns.items() if at == shape and not who.startswith(POOL)
                         and THROUGH_PYTHON not in who and who.endswith("every 64") == synchronised}
                found.append(goals.at_most_best(f"pair cost below every peer's, {way}, {shape}", self.median_ns.get((way, shape)), peers, simulated, below=True))
        return found


def _compile_torch(place: Place, folder: Path, limit_s: float) -> tuple[Path | None, str]:
    compiler = shutil.which("g++") or shutil.which("c++") or nvcc()
    if compiler is None:
        return None, "no C++ compiler"
    home = nvcc()
    includes = [folder / "include"] + ([Path(home).resolve().parents[1] / "include"] if home else []) + sorted(folder.parent.glob("nvidia/cu*/include"))
    runtime = next((path for path in includes[1:] if (path / "cuda_runtime_api.h").is_file()), None)
    if runtime is None:
        return None, "no header of the CUDA runtime"
    binary = place.scratch / "pairs_torch"
    is_nvcc = Path(compiler).name == "nvcc"
    to_linker = (lambda text: ["-Xlinker", text]) if is_nvcc else (lambda text: [f"-Wl,{text}"])
    system = [word for path in (folder / "include", runtime) for word in (("-I" if is_nvcc else "-isystem"), str(path))]
    ended = place.run([compiler, "-std=c++20", "-O2", "-I", str(ROOT), *system, str(ROOT / "tests/gpu/programs/pairs_torch.cpp"), "-o", str(binary),
                       f"-L{folder / 'lib'}", "-lc10_cuda", "-lc10", "-lpthread", "-ldl", *to_linker("--unresolved-symbols=ignore-in-shared-libs"),
                       *to_linker(f"-rpath={folder / 'lib'}")], limit_s)
    return (binary, "") if ended.code == 0 else (None, f"its program cannot be compiled: {ended.reason()}")


def _torch(place: Place, costs: Costs, limit_s: float) -> None:
    who = "PyTorch's caching allocator"
    python, why = python_with(place, ("torch",), limit_s)
    if python is None:
        return costs.leave_out(who, why)
    found = place.run([python, "-c", "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"], limit_s)
    binary, why = _compile_torch(place, Path(found.output.strip()), limit_s)
    if binary is None:
        return costs.leave_out(who, why)
    for name, setting in ((who, ""), (f"{who}, expandable segments", "expandable_segments:True")):
        more = {"PYTORCH_ALLOC_CONF": setting, "PYTORCH_CUDA_ALLOC_CONF": setting} if setting else {}
        result = outcome.of_ended(place.run([str(binary), name], limit_s, place.environment(**more)))
        costs.add(result)
        if result.status != outcome.PASSED:
            costs.leave_out(name, result.reason)


def _through_python(place: Place, costs: Costs, module: str, text: str, limit_s: float) -> None:
    python, why = python_with(place, (module,), limit_s)
    if python is None:
        return costs.leave_out(module, why)
    program = _PYTHON_PAIRS.format(folder=str(ROOT / "tests" / "gpu" / "frameworks")) + text
    result = outcome.of_ended(place.run([python, "-c", program], limit_s))
    costs.add(result)
    if result.status != outcome.PASSED:
        costs.leave_out(module, result.reason)


def pairs_part() -> Callable[[Place, float], Outcome]:
    def run(place: Place, limit_s: float) -> Outcome:
        program = place.program("gpu_probe")
        if program is None:
            return outcome.skipped(f"{place.build}/gpu/gpu_probe was not built")
        deadline_s, costs = time.monotonic() + limit_s, Costs()
        brief = {"PAIR_COST_ROUND_MS": "1"} if place.simulated else {}
        plain = outcome.of_ended(place.run([str(program), "pairs"], limit_s / 3, place.environment(**brief)))
        costs.add(plain)
        pooled = outcome.of_ended(place.run([str(program), "pairs"], limit_s / 3, place.shim_environment("none", **brief)))
        costs.add(pooled, _WAYS)
        for side, word in ((plain, "natively"), (pooled, "under the pool")):
            if side.status != outcome.PASSED:
                return Outcome(side.status, f"{word}: {side.reason}", costs.answers, costs.goals(place.simulated))
        left_s = lambda: max(deadline_s - time.monotonic(), 1)  # noqa: E731
        if place.simulated:
            for who in ("PyTorch's caching allocator", "cupy", "rmm"):
                costs.leave_out(who, "no GPU")
        else:
            _torch(place, costs, left_s())
            _through_python(place, costs, "cupy", _CUPY, left_s())
            _through_python(place, costs, "rmm", _RMM, left_s())
        costs.leave_out("XLA's BFC", "it cannot be called without XLA around it")
        threads = os.cpu_count() or 1
        if threads < 16:
            costs.answers.append({"question": "cores, for 16 threads", "answer": threads})
        return Outcome(outcome.PASSED, "", costs.answers, costs.goals(place.simulated))
    return run
