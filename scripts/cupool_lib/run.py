"""`cupool run`: a program under the pool.

Flags become CUPOOL_* variables, the library goes first into LD_PRELOAD, and the program is started and waited for as
launch.py says. Afterwards every process of this run that died without writing its report gets one, from its live page.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import time

from cupool_lib import completion, launch, locate
from cupool_lib.options import INTERNAL, Option, ProfileError, load_profile, program_environment
from cupool_lib.terminal import fail, printable

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


def build_environment(options: list[Option], flags: dict[str, str | None], profile: str | None,
                      environment: dict[str, str]) -> dict[str, str]:
    """Flags win over what the environment holds, and that over the profile."""
    result = dict(environment)
    if profile is not None:
        for variable, value in load_profile(profile, options).items():
            result.setdefault(variable, value)
    for option in options:
        value = flags.get(option.name)
        if option.name not in INTERNAL and value is not None:
            result[option.variable] = value
    return result


def with_preload(environment: dict[str, str], library: str) -> dict[str, str]:
    """`library` first in LD_PRELOAD, once, the other entries kept in their order. Raises NotFound for an unusable path."""
    if any(character in library for character in ": \t\n"):
        raise locate.NotFound(f"{library}: ld.so cannot preload a path with a space or colon in it; use a copy elsewhere")
    others = [entry for entry in environment.get("LD_PRELOAD", "").replace(":", " ").split() if entry != library]
    return {**environment, "LD_PRELOAD": ":".join([library] + others)}


def new_run_id(environment: dict[str, str]) -> str:
    """Unique; a run inside a run extends the outer id, so that the outer one also knows the inner one's processes."""
    outer, own = environment.get("CUPOOL_RUN_ID", ""), secrets.token_hex(6)
    nested = f"{outer}.{own}"
    return nested if RUN_ID.fullmatch(nested) else own


def run(options: list[Option], flags: dict[str, str | None], profile: str | None, library: str | None,
        command: list[str], ignored_signals: int) -> int:
    if not command:
        return fail("run: no command given, for example: cupool run --policy preallocate -- python train.py", OWN_FAILURE)
    try:
        environment = build_environment(options, flags, profile, program_environment())
        run_id = new_run_id(environment)
        environment["CUPOOL_RUN_ID"] = run_id
        environment = with_preload(environment, str(locate.library(library)))
        pid = launch.start(command, environment, ignored_signals)
    except (ProfileError, locate.NotFound) as error:
        return fail(f"run: {error}", OWN_FAILURE)
    except launch.LaunchError as error:
        return fail(f"run: {error}", error.code)
    status = launch.wait(pid)
    _complete_reports(run_id, pid, status)
    return launch.end_as(status)


def _complete_reports(run_id: str, pid: int, status: int) -> None:
    """Nothing that goes wrong here may change how the program ended."""
    try:
        lines = completion.complete_run(run_id, {pid: status}, time.time_ns())
    except Exception as error:  # the boundary: one line, and the program's own ending goes on
        lines = [f"a report could not be completed: {error}"]
    try:
        for line in lines:
            sys.stderr.write(f"cupool[{os.getpid()}]: {printable(line)}\n")
    except OSError:  # stderr is closed or its reader gone
        pass
