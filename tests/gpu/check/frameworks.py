"""A framework trains a few steps: natively, under the pool as it comes, with its own pool out of the way, and handed over.

The losses must be the same; each run under the pool must leave a valid report. tests/gpu/frameworks/ holds the programs.
"""

from __future__ import annotations

import math
import shutil
import sys
from typing import Callable

import outcome
import reports
from outcome import Outcome
from place import ROOT, Place

# What hands a framework's allocations to whoever serves cudaMalloc, one call per tensor.
STAND_ASIDE = {"torch": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "jax": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
               "cupy": {"GPU_CHECK_CUPY_DIRECT": "1"}, "ctypes": {}}
# The same kernels in every run: no autotuning, one workspace.
REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true",
              "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
TOLERANCE = 1e-5


def _python_with(place: Place, name: str, limit_s: float) -> tuple[str | None, str]:
    """A Python that can import the framework, and why there is none."""
    why = "no python3"
    for python in dict.fromkeys(filter(None, (sys.executable, shutil.which("python3")))):
        probe = f"import importlib.util, sys; sys.exit(0 if importlib.util.find_spec({name!r}) else 1)"
        if place.run([python, "-c", probe], min(limit_s, 20)).code == 0:
            return python, ""
        why = f"{name} is not installed"
    return None, why


def _losses(result: Outcome) -> list[float]:
    return next((one["answer"] for one in result.answers if one["question"] == "losses"), [])


def _compare(plain: list[float], pooled: list[float], how: str) -> tuple[str, list[dict]]:
    same = bool(plain) and len(plain) == len(pooled) and all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(plain, pooled))
    answers = [{"question": f"{how}: losses are the native ones to the last bit", "answer": plain == pooled, "assumed": True}]
    return ("" if same else f"{how}: losses {pooled}, natively {plain}"), answers


def framework_part(name: str) -> Callable[[Place, float], Outcome]:
    def run(place: Place, limit_s: float) -> Outcome:
        python, why = _python_with(place, name, limit_s / 4)
        if python is None:
            return outcome.skipped(why)
        program = [python, str(ROOT / "tests" / "gpu" / "frameworks" / f"{name}_steps.py")]
        native = outcome.of_ended(place.run(program, limit_s / 4, place.environment(**REPEATABLE)))
        answers = [{**one, "question": f"natively: {one['question']}"} for one in native.answers]
        if native.status != outcome.PASSED:
            return Outcome(native.status, f"natively: {native.reason}", answers)
        keep = ["--keep-framework-pool"]
        for how, flags, more in (("as it comes", keep, {}), ("its pool aside", keep, STAND_ASIDE[name]), ("handed over", [], {})):
            pattern = str(place.scratch / f"{name}-{how.replace(' ', '-')}.%p.json")
            command = [str(ROOT / "scripts" / "cupool"), "run", *flags, "--library", str(place.library), "--report", pattern, "--", *program]
            pooled = outcome.of_ended(place.run(command, limit_s / 4, place.environment(**REPEATABLE, **more)))
            answers += [{**one, "question": f"{how}: {one['question']}"} for one in pooled.answers]
            if pooled.status != outcome.PASSED:
                return Outcome(pooled.status, f"{how}: {pooled.reason}", answers)
            fault, compared = _compare(_losses(native), _losses(pooled), how)
            report_fault, figures = reports.judge(place, pattern.replace("%p", "*"), 1)
            answers += compared + [{"question": f"{how}: report", "answer": figures}]
            if fault or report_fault:
                return outcome.failed(fault or f"{how}: {report_fault}", answers)
        return Outcome(outcome.PASSED, "", answers)
    return run
