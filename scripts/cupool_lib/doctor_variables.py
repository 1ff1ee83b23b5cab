"""Doctor's check of the CUPOOL_* variables: names, values that the library would not take, and what such a value could not do here."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from cupool_lib import locate, option_values
from cupool_lib.doctor import FAILURE, OK, WARNING, Finding
from cupool_lib.options import INTERNAL, Option, load_options
from cupool_lib.output_file import is_too_long


def check(facts: dict) -> list[Finding]:
    """`facts`: what driver_probe.py says."""
    try:
        options = {option.variable: option for option in load_options()}
    except (locate.NotFound, OSError, ValueError, KeyError) as error:
        return [Finding("variables", FAILURE, f"the table of options cannot be read: {error}", "the installation is incomplete")]
    findings = []
    for name in sorted(variable for variable in os.environ if variable.startswith("CUPOOL_")):
        findings += _variable(name, options)
    if not any(finding.detail.startswith("CUPOOL_LIMIT=") for finding in findings):
        findings += _limit(facts)
    findings += [*_log_file(), *_trace()]
    values = [f"{name}={os.environ[name]}" for name in options if name in os.environ and options[name].name not in INTERNAL]
    return findings or [Finding("variables", OK, ", ".join(values) if values else "no CUPOOL_* variable is set: every option has its default")]


def _variable(name: str, options: dict[str, Option]) -> list[Finding]:
    if name not in options:
        near = difflib.get_close_matches(name, [key for key, option in options.items() if option.name not in INTERNAL], 1, 0.6)
        return [Finding("variables", WARNING, f"{name} is not a variable of cupool's", f"did you mean {near[0]}?" if near else "unset it")]
    text = os.environ[name]
    if problem := options[name].problem(text):
        return [Finding("variables", WARNING, f"{name}={text} {problem}", f"the default, {options[name].default}, will be used")]
    if options[name].name == "stacks" and text.strip().lower() not in ("", "off"):
        return [Finding("variables", WARNING, f"{name}={text} is not served yet: every process that uses CUDA says so, and its report has no call sites", "unset it")]
    return []


def _limit(facts: dict) -> list[Finding]:
    text = os.environ.get("CUPOOL_LIMIT", "")
    devices = [device["ordinal"] for device in facts.get("devices", [])]
    missing = [ordinal for ordinal in option_values.ordinals(text) if ordinal not in devices] if facts.get("usable") else []
    if not missing:
        return []
    return [Finding("variables", WARNING, f"CUPOOL_LIMIT={text} limits device {', '.join(map(str, missing))}, and there is none here",
                    f"the devices are {', '.join(map(str, devices))}, as CUDA_VISIBLE_DEVICES leaves them")]


def _file_of(variable: str) -> Path | None:
    """What the variable names, where that has no pattern in it that only a process can fill in; else its folder."""
    text = os.environ.get(variable, "").strip()
    if text.lower() in ("", "none", "stderr") or option_values.problem("pattern", text):
        return None
    if "%" not in text:
        return Path(text).absolute()
    fixed = text.split("%", 1)[0]
    return Path(fixed if fixed.endswith("/") else os.path.dirname(fixed) or ".").absolute()


def _reason_of_folder(parent: Path) -> str:
    """Why nothing can be made in it, or in the first of its parents that is there; empty: it can."""
    while not os.path.exists(parent) and parent != parent.parent:
        parent = parent.parent
    return "" if os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK) else f"{parent} is not a folder that this user may write to"


def _log_file() -> list[Finding]:
    """Opened as shim/log_file.cpp opens it; folders are made for it."""
    path = _file_of("CUPOOL_LOG_FILE")
    if path is None:
        return []
    if is_too_long(path):
        reason = "a name in it is too long"
    elif "%" in os.environ["CUPOOL_LOG_FILE"]:
        reason = _reason_of_folder(path)
    elif not os.path.lexists(path):
        reason = _reason_of_folder(path.parent)
    elif not os.access(path, os.W_OK) or os.path.isdir(path) or os.path.islink(path):
        reason = f"{path} is not a file that this user may write to"
    else:
        facts = path.stat()
        reason = f"{path} belongs to another user, or has another name too" if os.path.isfile(path) and (facts.st_uid != os.geteuid() or facts.st_nlink != 1) else ""
    return [Finding("log file", WARNING, f"CUPOOL_LOG_FILE={os.environ['CUPOOL_LOG_FILE']} cannot be opened: {reason}",
                    "messages go to stderr; name a file of your own")] if reason else []


def _trace() -> list[Finding]:
    """A new file; folders are made for it."""
    path = _file_of("CUPOOL_TRACE")
    if path is None:
        return []
    is_whole = "%" not in os.environ["CUPOOL_TRACE"]
    if is_whole and os.path.lexists(path):
        reason = f"{path} is there already, and is not overwritten"
    elif is_too_long(path):
        reason = "a name in it is too long"
    else:
        reason = _reason_of_folder(path.parent if is_whole else path)
    return [Finding("trace", WARNING, f"CUPOOL_TRACE={os.environ['CUPOOL_TRACE']}: no trace would be written: {reason}", "choose another name, with %p say")] if reason else []
