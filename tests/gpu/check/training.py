"""Runs a framework's program by each of its routes and compares: losses, step times, peak memory, what the pool reported.

Losses must be the first route's, to the last bit or, said so, within the tolerance. A route of the pool that fails, loses its losses
or leaves a wrong report fails the part; one of the framework's own that cannot run here is left out, with its reason.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from typing import Any, Callable

import goals
import outcome
import reports
from outcome import Outcome
from place import ROOT, Place
from routes import AGAIN, COMPARISONS, Comparison, Route

# The same kernels in every run: no autotuning, one workspace; what is compiled once serves every route.
REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
XLA_FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"
FOREIGN = ("PYTORCH_", "XLA_", "TF_", "JAX_", "GPU_CHECK_CUPY", "GPU_CHECK_WAY", "TORCHINDUCTOR_", "TORCH_")


def python_with(place: Place, modules: tuple[str, ...], limit_s: float) -> tuple[str | None, str]:
    """A Python that can import them all, and why there is none."""
    why = "no python3"
    for python in dict.fromkeys(filter(None, (sys.executable, shutil.which("python3")))):
        probe = f"import importlib.util; print(*(name for name in {modules!r} if importlib.util.find_spec(name) is None))"
        ended = place.run([python, "-c", probe], min(limit_s, 20))
        if ended.code == 0 and not ended.output.strip():
            return python, ""
        if ended.code == 0:
            why = f"{ended.output.split()[0]} is not installed"
    return None, why


def said(result: Outcome, question: str) -> Any:
    return next((one["answer"] for one in result.answers if one["question"] == question and "answer" in one), None)


def _losses(result: Outcome) -> dict[str, list[float]]:
    return {one["question"]: one["answer"] for one in result.answers if one["question"].startswith("losses") and "answer" in one}


def compare_losses(base: dict[str, list[float]], other: dict[str, list[float]], tolerance: float) -> tuple[str, str]:
    """("to the last bit" | "within …" | "", what is wrong). NaN equals nothing."""
    if not base or set(base) != set(other):
        return "", f"losses of {sorted(other)}, natively of {sorted(base)}"
    if base == other:
        finite = all(math.isfinite(value) for values in base.values() for value in values)
        return ("to the last bit", "") if finite else ("", "the losses are not finite")
    worst = 0.0
    for kind, values in base.items():
        if len(values) != len(other[kind]):
            return "", f"{kind}: {len(other[kind])} steps, natively {len(values)}"
        for mine, theirs in zip(other[kind], values):
            worst = max(worst, abs(mine - theirs) / max(abs(theirs), 1e-9)) if math.isfinite(mine) and math.isfinite(theirs) else math.inf
    if worst > tolerance:
        return "", f"losses differ by up to {worst:.2g} of their value"
    return f"within {worst:.2g} of their value", ""


class Runs:
    """One comparison under way."""

    def __init__(self, place: Place, name: str, python: str, limit_s: float) -> None:
        self.place, self.name, self.what = place, name, COMPARISONS[name]
        self.deadline_s = time.monotonic() + limit_s
        self.program = [python, str(ROOT / "tests" / "gpu" / "frameworks" / self.what.program)]
        self.answers: list[dict[str, Any]] = []
        self.results: dict[str, Outcome] = {}
        self.xla_flags = XLA_FLAGS
        self.faults: list[str] = []

    def environment(self, route: Route) -> dict[str, str]:
        caches = self.place.scratch / "compiled"
        kept = {key: value for key, value in self.place.environment().items() if not key.startswith(FOREIGN)}
        kept.update(REPEATABLE, XLA_FLAGS=self.xla_flags, JAX_COMPILATION_CACHE_DIR=str(caches / "jax"), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
                    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1", TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"), TRITON_CACHE_DIR=str(caches / "triton"))
        kept.update(route.environment)
        if not self.xla_flags:
            kept.pop("XLA_FLAGS")
        return kept

    def command(self, route: Route, limit_s: float, pattern: str) -> list[str]:
        words = [*self.program, *self.what.words, *route.words]
        if self.what.timed:
            first = self.results.get(self.what.routes[0].name)
            guess = [said(first, f"largest batch that fits, {kind}") for kind in ("fixed lengths", "varying lengths")] if first else []
            words += ["--seconds", f"{limit_s:.0f}", "--guess", ",".join(str(one or "") for one in guess)]
        if route.flags is None:
            return words
        return [str(ROOT / "scripts" / "cupool"), "run", *route.flags, "--library", str(self.place.library), "--report", pattern, "--", *words]

    def run(self, route: Route) -> Outcome:
        left_s = self.deadline_s - time.monotonic()
        if left_s < 2:
            return outcome.skipped("the part's time is spent")
        limit_s = min(self.what.share_s, left_s)
        slug = "".join(letter if letter.isalnum() else "-" for letter in route.name)
        pattern = str(self.place.scratch / f"{self.name}-{slug}.%p.json")
        ended = self.place.run(self.command(route, limit_s, pattern), limit_s, self.environment(route))
        if self.xla_flags and ended.code != 0 and "nknown flag" in ended.errors:
            self.xla_flags = ""  # this XLA has other names for them: the tolerance then has to do
            return self.run(route)
        result = outcome.of_ended(ended)
        if route.unsupported and result.status == outcome.FAILED and route.unsupported in ended.errors:
            return Outcome(outcome.SKIPPED, f"the framework does not offer it: {route.unsupported}", result.answers)
        if route.is_pooled and result.status == outcome.PASSED:
            self._judge_report(route, result, pattern)
        return result

    def _judge_report(self, route: Route, result: Outcome, pattern: str) -> None:
        least = 1 if "--keep-framework-pool=pytorch" in (route.flags or ()) else self.what.least_allocations
        fault, figures = reports.judge(self.place, pattern.replace("%p", "*"), least, route.maps_itself)
        exits = [name for name in reports.files(pattern.replace("%p", "*")) if ".oom" not in name.name]
        if not fault and self.what.reports and len(exits) != self.what.reports:
            fault = f"{len(exits)} processes left a report, expected {self.what.reports}"
        result.answers.append({"question": "report", "answer": figures})
        if fault:
            result.status, result.reason = outcome.FAILED, fault

    def take(self, route: Route) -> None:
        """Runs the route and files what it came to."""
        result = self.run(route)
        self.results[route.name] = result
        self.answers += [{**one, "question": f"{route.name}: {one['question']}"} for one in result.answers]
        if result.status == outcome.PASSED and route.allocator and said(result, "allocator") != route.allocator:
            result.status, result.reason = outcome.FAILED, f"its allocator is {said(result, 'allocator')}, wanted {route.allocator}"
        if result.status == outcome.PASSED and self.results[self.what.routes[0].name].status == outcome.PASSED:
            self._compare(route, result)
        if result.status != outcome.PASSED:
            if route.is_pooled and result.status != outcome.SKIPPED:
                self.faults.append(f"{route.name}: {result.reason}")
            self.answers.append({"question": f"{route.name}: could not be compared", "left_out": result.reason})

    def _compare(self, route: Route, result: Outcome) -> None:
        if route is self.what.routes[0]:
            return
        how, fault = compare_losses(_losses(self.results[self.what.routes[0].name]), _losses(result), self.what.tolerance)
        self.answers.append({"question": f"{route.name}: losses are the native ones", "answer": how or fault})
        if fault and route.is_pooled:
            result.status, result.reason = outcome.FAILED, fault

    def step_ns(self, route: Route, kind: str) -> float | None:
        """Fixed lengths by the median; varying ones by the mean, because the same lengths come in every run."""
        result = self.results.get(route.name)
        figures = said(result, f"steps, {kind}") if result and result.status == outcome.PASSED else None
        return figures["median_ns" if kind == "fixed lengths" else "mean_ns"] if figures else None

    def goals(self) -> list[goals.Goal]:
        if not self.what.goal:
            return []
        found = []
        for kind in ("fixed lengths", "varying lengths"):
            times = {route.name: self.step_ns(route, kind) for route in self.what.routes}
            own = {route.name: times[route.name] for route in self.what.routes if route.own and times[route.name]}
            noise = ""
            first = self.what.routes[0].name
            if times.get(AGAIN) and times.get(first):
                noise = f"the same run twice natively: {times[AGAIN] / times[first]:.3f}"
            for route in self.what.routes:
                if route.is_pooled and route.judged:
                    found.append(goals.at_most_best(f"step time at most its best own pool's, {route.name}, {kind}", times[route.name], own,
                                                    self.place.simulated, noise))
        return found


def comparison_part(name: str) -> Callable[[Place, float], Outcome]:
    def run(place: Place, limit_s: float) -> Outcome:
        what: Comparison = COMPARISONS[name]
        python, why = python_with(place, what.modules, limit_s / 4)
        if python is None:
            return outcome.skipped(why)
        runs = Runs(place, name, python, limit_s)
        for route in what.routes:
            runs.take(route)
            if route is what.routes[0] and runs.results[route.name].status != outcome.PASSED:
                first = runs.results[route.name]
                return Outcome(first.status, f"{route.name}: {first.reason}", runs.answers, runs.goals())
        pooled = [runs.results[route.name] for route in what.routes if route.is_pooled]
        if runs.faults:
            timed_out = all(one.status in (outcome.PASSED, outcome.SKIPPED, outcome.TIMEOUT) for one in pooled)
            return Outcome(outcome.TIMEOUT if timed_out else outcome.FAILED, "; ".join(runs.faults), runs.answers, runs.goals())
        if not any(one.status == outcome.PASSED for one in pooled):
            return Outcome(outcome.SKIPPED, f"no route of the pool ran: {pooled[0].reason}", runs.answers, runs.goals())
        return Outcome(outcome.PASSED, "", runs.answers, runs.goals())
    return run
