"""`cupool run`: a program under the pool.

Flags become CUPOOL_* variables, the frameworks' own settings too (handover.py), the library goes first into LD_PRELOAD, and
the program is started and waited for as launch.py says. Afterwards every process of this run that died without writing its report gets one, from its live page.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import time
from dataclasses import dataclass

from cupool_lib import completion, handover, launch, locate, sanitizers
from cupool_lib.options import INTERNAL, Option, ProfileError, load_profile, program_environment
from cupool_lib.terminal import OutputFailed, fail, printable, put, tell

OWN_FAILURE = 125
RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")  # what the library takes, see config/options.def


def split_command(arguments: list[str], valued: set[str]) -> tuple[list[str], list[str]]:
    """Flags of ours, and the command: it starts after `--`, or at the first word that is no flag nor a flag's value."""
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return arguments[:index], arguments[index + 1:]
        if not word.startswith("-") or word == "-":
            break
        index += 2 if word in valued else 1
    return arguments[:index], arguments[index:]


@dataclass(frozen=True)
class Choices:
    """What stood on the command line before the program."""

    flags: dict[str, str | None]  # by option name
    profile: str | None = None
    library: str | None = None
    keep_pools: frozenset[str] = frozenset()  # of these frameworks
    dry_run: bool = False


def build_environment(options: list[Option], choices: Choices, environment: dict[str, str]) -> tuple[dict[str, str], dict[str, handover.Explicit]]:
    """Flags win over what the environment holds, and that over the profile; also says which of them each option comes from."""
    result, explicit = dict(environment), {}
    profile = load_profile(choices.profile, options) if choices.profile is not None else {}
    for option in options:
        flag, variable = choices.flags.get(option.name), option.variable
        if option.name in INTERNAL:
            continue
        if flag is not None:
            result[variable], source = flag, f"{option.flag} {flag}"
        elif variable in environment:
            source = f"{variable}={environment[variable]}"
        elif variable in profile:
            result[variable], source = profile[variable], f"profile {choices.profile} ({option.name} {profile[variable]})"
        if result.get(variable, "").strip() and not option.problem(result[variable]):  # else the library uses the default, or what a framework asks for
            explicit[option.name] = handover.Explicit(result[variable], source)
    return result, explicit


def with_preload(environment: dict[str, str], library: str) -> dict[str, str]:
    """`library` first in LD_PRELOAD, the other entries kept in their order, but for other copies of the library: one would pool on top of the other.
    Raises NotFound for an unusable path."""
    if problem := locate.preload_problem(library):
        raise locate.NotFound(f"{library}: {problem}; use a copy elsewhere")
    if not locate.is_shared_object(library):  # ld.so would say so, and the command run without it
        raise locate.NotFound(f"{library}: not a shared library")
    copies = (locate.LIBRARY_NAME, os.path.basename(library))
    others = [entry for entry in environment.get("LD_PRELOAD", "").replace(":", " ").split() if os.path.basename(entry) not in copies]
    return {**environment, "LD_PRELOAD": ":".join([library] + others)}


def new_run_id(environment: dict[str, str]) -> str:
    """Unique; a run inside a run extends the outer id, so that the outer one also knows the inner one's processes."""
    outer, own = environment.get("CUPOOL_RUN_ID", ""), secrets.token_hex(6)
    nested = f"{outer}.{own}"
    return nested if RUN_ID.fullmatch(nested) else own


def run(options: list[Option], choices: Choices, command: list[str], ignored_signals: int) -> int:
    if not command:
        return fail("run: no command given, for example: cupool run --policy preallocate -- python train.py", OWN_FAILURE)
    try:
        given = program_environment()
        environment, explicit = build_environment(options, choices, given)
        plan = handover.plan(environment, explicit, choices.keep_pools)
        plan.changes += sanitizers.changes(command, environment)
        _tell(plan.conflicts, environment)
        environment = plan.apply(environment)
        run_id = new_run_id(environment)
        environment["CUPOOL_RUN_ID"] = run_id
        environment = with_preload(environment, str(locate.library(choices.library)))
        if choices.dry_run:
            put(dry_run(command, environment["LD_PRELOAD"], explicit, plan))
            return 0
        pid = launch.start(command, environment, ignored_signals)
    except (ProfileError, locate.NotFound, OutputFailed) as error:
        return fail(f"run: {error}", OWN_FAILURE)
    except launch.LaunchError as error:
        return fail(f"run: {error}", error.code)
    status = launch.wait(pid)
    _complete_reports(run_id, pid, status, environment)
    return launch.end_as(status)


def dry_run(command: list[str], preload: str, explicit: dict[str, handover.Explicit], plan: handover.Plan) -> str:
    """What would be set and why, one variable a line."""
    rows = [(f"LD_PRELOAD={preload}", "the library")]
    rows += [(f"CUPOOL_{name.upper()}={choice.value}", f"you: {choice.source}") for name, choice in explicit.items()]
    for change in plan.changes:
        rows.append((f"unset {change.variable}" if change.value is None else f"{change.variable}={change.value}", change.why))
    width = min(60, max(len(left) for left, _ in rows))
    lines = [f"would run: {shlex.join(command)}", *(f"  {left:{width}}  {why}" for left, why in rows), *(f"  left as it is: {note}" for note in plan.notes)]
    return "".join(printable(line) + "\n" for line in lines)


def _is_quiet(environment: dict[str, str]) -> bool:
    return environment.get("CUPOOL_LOG", "").strip().lower() in completion.QUIET


def _tell(lines: list[str], environment: dict[str, str]) -> None:
    if _is_quiet(environment):
        return
    for line in lines:
        tell(f"cupool: {printable(line)}")


def _complete_reports(run_id: str, pid: int, status: int, environment: dict[str, str]) -> None:
    """Nothing that goes wrong here may change how the program ended."""
    try:
        is_told = environment.get("CUPOOL_REPORT", "").strip().lower() != "none" and not _is_quiet(environment)
        lines = completion.without_page(pid, status) if is_told else []
        lines += completion.complete_run(run_id, {pid: status}, time.time_ns())
        lines += completion.complete_for_others(run_id, {pid: status}, time.time_ns())
    except Exception as error:  # the boundary: one line, and the program's own ending goes on
        lines = [f"a report could not be completed: {error}"]
    for line in lines:
        tell(f"cupool[{os.getpid()}]: {printable(line)}")
