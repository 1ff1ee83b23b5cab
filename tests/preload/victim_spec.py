"""The expectations of a victim, read from its own source: lines that begin with `//!` (`/*!` is never used).

    //! <directive> <value>            before the first `case`: for every case of the file
    //! case <name>                    from here on: for this case only; a file without cases has one, called "default"

  args    ARG...          command line                      env     NAME=VALUE     one variable
  exit    CODE            default 0                         signal  NAME           dies by it, instead of `exit`
  native  same|skip       default same: the same run on the bare driver gives the same exit and the same stdout
  report  present|absent|stderr|elsewhere   default present: one valid exit report under the default name, else none at all
  ooms    N|any           reports of out-of-memory events, default 0
  page    gone|left|any   the live page in shared memory after the end; default gone
  stderr  REGEX           the next line of stderr matches it; default: stderr is empty
  stderr* REGEX           any number of further lines, each of which matches it
  misuse                  the simulated driver may note violations (double frees and the like); default: it must not
  pages_of_children       children may leave reports and pages of their own
  needs   EXPRESSION      Python, true where the case can run; else it is skipped, visibly (root(): may become another user)
  uid     NUMBER          runs as that user, who needs no name; the working folder is given to it
  preload BEFORE|AFTER    further libraries in LD_PRELOAD, colon separated, before or after the library: "libx.so:|" or "|/usr/lib/y.so";
                          a name without a slash is one of victims/libraries. The native run has them too
  seconds NUMBER          most that the run may take
  setup   PYTHON          statement run before, in the victim's empty working folder (`env` is its environment)
  check   PYTHON          expression that must be true; see Outcome in victim_runner.py for the names
"""
from __future__ import annotations

import copy
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Spec:
    case: str = "default"
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    exit: int = 0
    signal: str | None = None
    native: str = "same"
    report: str = "present"
    ooms: int | None = 0
    page: str = "gone"
    stderr: list[str] = field(default_factory=list)
    stderr_rest: str | None = None
    misuse: bool = False
    pages_of_children: bool = False
    needs: list[str] = field(default_factory=list)
    uid: int | None = None
    preload: str = "|"
    seconds: float = 120
    setup: list[str] = field(default_factory=list)
    check: list[str] = field(default_factory=list)


class BadSpec(Exception):
    pass


def _apply(spec: Spec, word: str, value: str) -> None:
    if word == "args":
        spec.args = shlex.split(value)
    elif word == "env":
        name, _, text = value.partition("=")
        spec.env[name] = text
    elif word == "ooms" and value == "any":
        spec.ooms = None
    elif word in ("exit", "ooms", "uid"):
        setattr(spec, word, int(value))
    elif word == "seconds":
        spec.seconds = float(value)
    elif word in ("signal", "native", "report", "page", "preload"):
        setattr(spec, word, value)
    elif word in ("misuse", "pages_of_children"):
        setattr(spec, word, True)
    elif word == "stderr*":
        spec.stderr_rest = value
    elif word in ("stderr", "setup", "check", "needs"):
        getattr(spec, word).append(value)
    else:
        raise BadSpec(f"unknown directive: //! {word}")


def read(source: Path) -> dict[str, Spec]:
    """Every case of one victim, by name."""
    shared = Spec()
    cases: dict[str, Spec] = {}
    current = shared
    for line in source.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//! "):
            continue
        word, _, value = line[4:].strip().partition(" ")
        value = value.strip()
        if word == "case":
            current = copy.deepcopy(shared)
            current.case = value
            cases[value] = current
        else:
            _apply(current, word, value)
    return cases or {"default": shared}
