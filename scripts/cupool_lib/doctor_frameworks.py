"""Doctor's answer to: would the hand-over take for this command?

Which frameworks the command's Python could import (looked for, never imported), what the hand-over would set for each, and
what in the script itself would undo it. What is known of scripts stands in HINTS.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass

from cupool_lib import handover, handover_rules, locate
from cupool_lib.doctor import FAILURE, OK, WARNING, Finding
from cupool_lib.options import load_options, program_environment

_PROBE_SECONDS = 60
_SCRIPT_BYTES = 1 << 20
_OLDEST_PYTORCH = (2, 0)
_KEEP_PYTORCH = "leave PyTorch its pool: cupool run --keep-framework-pool=pytorch"


@dataclass(frozen=True)
class Framework:
    name: str
    module: str
    distributions: tuple[str, ...]
    plain: str = ""  # what is said where there is no pool that a variable could switch off


@dataclass(frozen=True)
class Hint:
    """What is said when `pattern` stands in a line of the script that is no comment; {} in `detail` is a named group of it."""

    check: str
    pattern: str
    detail: str
    advice: str


FRAMEWORKS = (
    Framework("PyTorch", "torch", ("torch",)),
    Framework("JAX", "jax", ("jax",)),
    Framework("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu", "tf-nightly")),
    Framework("CuPy", "cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")),
    Framework("RMM", "rmm", ("rmm-cu13", "rmm-cu12", "rmm-cu11", "rmm"), "allocates plainly unless the program chooses a pool in code"),
    Framework("Numba", "numba", ("numba",), "has no pool"),
)

_VARIABLES = sorted({setting.variable for pool in handover_rules.POOLS for setting in pool.settings}, key=len, reverse=True)
_UPDATE = re.compile(r"environ\.update\(|environ\s*\|=")
_UPDATED = re.compile(r"['\"](?P<item>{0})['\"]\s*[:,]|(?<=[(,\s])(?P<keyword>{0})=".format("|".join(_VARIABLES)))
_LINES_SHOWN = 10
_CUPY_OFF = re.compile(r"set_allocator\(\s*(None)?\s*\)")

HINTS = (
    Hint("settings", r"environ\[\s*['\"](?P<name>{0})['\"]\s*\]\s*=(?!=)|putenv\(\s*['\"](?P<put>{0})|(?:^|[\s;&])(?P<shell>{0})=".format("|".join(_VARIABLES)),
         "sets {} itself, after the hand-over", "take that line out, or leave that framework its pool: --keep-framework-pool=NAME"),
    Hint("deepbind", r"RTLD_DEEPBIND", "opens a library with RTLD_DEEPBIND", "CUDA calls that this library links directly are not pooled; open it without that flag"),
    Hint("preloads", r"(?:^|[\s;&])(?:export\s+)?LD_PRELOAD=|unset\s+LD_PRELOAD|environ\[\s*['\"]LD_PRELOAD['\"]\s*\]\s*=(?!=)|environ\.pop\(\s*['\"]LD_PRELOAD|env\s+-i\b",
         "changes LD_PRELOAD or the environment by itself", "what it starts after that is not pooled; put `cupool run` behind that line"),
    Hint("PyTorch", r"_record_memory_history|memory_snapshot\(|memory\._snapshot|_dump_snapshot", "takes PyTorch's memory snapshots, which its stream-ordered backend refuses",
         _KEEP_PYTORCH),
    Hint("PyTorch", r"reduce-overhead|max-autotune(?!-no-cudagraphs)", "compiles with CUDA graphs, which PyTorch's stream-ordered backend refuses", _KEEP_PYTORCH),
    Hint("PyTorch", r"\bMemPool\(|use_mem_pool\(|CUDAPluggableAllocator|enable[_-]sleep[_-]mode", "uses pools of PyTorch's own, which its stream-ordered backend does not have", _KEEP_PYTORCH),
    Hint("RMM", r"PoolMemoryResource|ArenaMemoryResource|pool_allocator\s*=\s*True", "chooses a pool of RMM's", "use rmm.mr.CudaMemoryResource(), and cupool sees every buffer"),
)

_PROBE = """
import importlib.util, json, sys
if sys.path[:1] == [""]:
    sys.path[0] = sys.argv[1]
try:
    from importlib.metadata import version
except ImportError:
    version = None
found = {}
for module, names in json.loads(sys.argv[2]).items():
    try:
        spec = importlib.util.find_spec(module)
    except Exception:
        spec = None
    if spec is None or spec.origin is None:
        continue
    found[module] = ""
    for name in names if version else ():
        try:
            found[module] = version(name)
            break
        except Exception:
            pass
print("\\n" + json.dumps(found))
"""


@dataclass(frozen=True)
class Program:
    """What a command runs in the end: an interpreter, and the text that it reads, as far as doctor can tell."""

    interpreter: str
    flags: tuple[str, ...] = ()
    script: str = ""        # a file
    text: str = ""          # of -c
    folder: str = ""        # what `import` looks into first

    def is_python(self) -> bool:
        return bool(re.match(r"(python|pypy)[\d.]*$", os.path.basename(self.interpreter)))


def plan_of_environment() -> handover.Plan:
    """What `cupool run`, without flags, would set here."""
    from cupool_lib import run
    try:
        environment, explicit = run.build_environment(load_options(), run.Choices({}), program_environment())
    except (locate.NotFound, OSError, ValueError, KeyError):
        return handover.Plan()  # the check of variables says it
    return handover.plan(environment, explicit)


def check(program: Program | None, plan: handover.Plan) -> list[Finding]:
    findings = [Finding("settings", WARNING, line, "unset one of them, or ask for cupool's own setting alone") for line in plan.conflicts]
    findings += [Finding("settings", OK, f"{change.variable}={change.value}, from {change.why}") for change in plan.changes if change.variable.startswith("CUPOOL_")]
    text = _script_text(program)
    if program and program.is_python():
        findings += _frameworks(program, plan, text)
    return findings + _hints(program, text)


def _script_text(program: Program | None) -> str:
    if program is None or not program.script:
        return program.text if program else ""
    try:
        with open(program.script, "rb") as stream:
            return stream.read(_SCRIPT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _frameworks(program: Program, plan: handover.Plan, text: str) -> list[Finding]:
    names = {framework.module: framework.distributions for framework in FRAMEWORKS}
    command = [program.interpreter, *program.flags, "-c", _PROBE, program.folder, json.dumps(names)]
    try:
        result = subprocess.run(command, env=program_environment(), capture_output=True, timeout=_PROBE_SECONDS, stdin=subprocess.DEVNULL, check=False)
        found = json.loads(result.stdout.decode("utf-8", "replace").rstrip().rpartition("\n")[2])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return [Finding("frameworks", WARNING, f"{program.interpreter} does not say which frameworks it has", "the hand-over is made all the same; try it")]
    findings = [_framework(framework, str(found[framework.module]), plan, text) for framework in FRAMEWORKS if framework.module in found]
    others = ", ".join(framework.name for framework in FRAMEWORKS)
    return findings or [Finding("frameworks", OK, f"{program.interpreter} finds none of {others}: there is no pool to hand over")]


def _framework(framework: Framework, version: str, plan: handover.Plan, text: str) -> Finding:
    name = f"{framework.name} {version}".strip()
    if framework.plain:
        return Finding(framework.name, OK, f"{name} {framework.plain}: every allocation reaches cupool")
    if framework.name == "CuPy":
        if _CUPY_OFF.search(text):
            return Finding("CuPy", OK, f"{name}: the script switches its pool off")
        return Finding("CuPy", WARNING, f"{name} keeps a pool that no variable switches off: the report sees its chunks, no arrays",
                       "write cupy.cuda.set_allocator(None) at the start of the program")
    if version.endswith("+cpu"):
        return Finding(framework.name, OK, f"{name} is built without CUDA")
    settings = [change for change in plan.changes if change.why.startswith(f"{framework.name}: ") and not change.variable.startswith("CUPOOL_")]
    if framework.name == "PyTorch" and settings and version and _release(version) < _OLDEST_PYTORCH:
        return Finding("PyTorch", FAILURE, f"{name} does not know backend:cudaMallocAsync and would stop with an error", f"update it to 2.0 or newer, or {_KEEP_PYTORCH}")
    if settings:
        told = ", ".join(f"{change.variable}={change.value}" for change in settings if change.value is not None)
        return Finding(framework.name, OK, f"{name} would get {told}")
    notes = [note for note in plan.notes if framework.name in note or "frameworks" in note or "handed over" in note]
    kept = [note for note in notes + plan.conflicts if "keep" in note and (framework.name in note or "frameworks" in note)]
    if kept:
        return Finding(framework.name, WARNING, f"{name} would keep its own pool ({kept[0]})", "the report will see its regions, no tensors; choose another setting if you want those")
    return Finding(framework.name, OK, f"{name}: its pool stands aside already" + (f" ({'; '.join(notes)})" if notes else ""))


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _hints(program: Program | None, text: str) -> list[Finding]:
    where = program.script if program and program.script else "the command"
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("#")]
    findings = []
    for hint in HINTS:
        matches = {(number, *filter(None, match.groupdict().values())) for number, line in lines for match in re.finditer(hint.pattern, line)}
        found = sorted(matches | _updates(lines) if hint.check == "settings" else matches)
        findings += [Finding(hint.check, WARNING, f"{where}:{number} {hint.detail.format(*names)}", hint.advice) for number, *names in found[:_LINES_SHOWN]]
        if len(found) > _LINES_SHOWN:
            findings.append(Finding(hint.check, WARNING, f"{where}: and {len(found) - _LINES_SHOWN} more such lines", hint.advice))
    return findings


def _updates(lines: list[tuple[int, str]]) -> set[tuple[int, str]]:
    """What os.environ.update(...) and os.environ |= {...} set, which may go on for many lines: (line, name)."""
    found, depth = set(), 0
    for number, line in lines:
        if not depth:
            begin = _UPDATE.search(line)
            if not begin:
                continue
            line = line[begin.start():]
        found |= {(number, match["item"] or match["keyword"]) for match in _UPDATED.finditer(line)}
        depth += sum(line.count(bracket) for bracket in "([{") - sum(line.count(bracket) for bracket in ")]}")
        depth = max(depth, 0)
    return found
