"""Runs a command in a process group of its own, for a limited time; at the limit the whole group is killed.

What was printed until then is kept: output goes to files, not to pipes that a killed process takes along.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Mapping, Sequence

SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


@dataclass(frozen=True)
class Ended:
    code: int  # negative: the signal
    output: str
    errors: str
    timed_out: bool
    wall_s: float

    def reason(self) -> str:
        """Why this is no success, in one line; the last words of stderr included."""
        last = [line for line in self.errors.strip().splitlines() if line.strip()][-1:]
        words = f": {last[0].strip()[:200]}" if last else ""
        if self.timed_out:
            return f"killed after {self.wall_s:.0f} s{words}"
        if self.code < 0:
            return f"died of {SIGNAL_NAMES.get(-self.code, -self.code)}{words}"
        return f"exit code {self.code}{words}"


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody is left


def run(command: Sequence[str], environment: Mapping[str, str], limit_s: float, folder: str) -> Ended:
    """Never raises for what the command does; a command that cannot be started ends with code 127."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(list(command), env=dict(environment), cwd=folder, stdin=subprocess.DEVNULL,
                                     stdout=output, stderr=errors, start_new_session=True)
        except OSError as error:
            return Ended(127, "", str(error), False, 0.0)
        timed_out = False
        try:
            child.wait(timeout=max(limit_s, 0.1))
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill_group(child.pid)  # also what a program that has ended left behind, and on Ctrl-C
            child.wait()
        output.seek(0)
        errors.seek(0)
        return Ended(child.returncode, output.read().decode("utf-8", "replace"), errors.read().decode("utf-8", "replace"),
                     timed_out, time.monotonic() - start)
