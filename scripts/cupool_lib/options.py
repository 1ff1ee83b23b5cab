"""The table of options (options.json, generated from config/options.def) and profiles.

One row: name, variable, type, default, unit, doc, and for a choice its values. This module turns rows into flags and
flags into variables; option_values.py knows which values the library takes.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from cupool_lib import locate, option_values

# Set by `cupool run` itself, never by a flag.
INTERNAL = frozenset({"run_id"})
HANDED_ON = "_CUPOOL_ENVIRONMENT"  # by scripts/cupool: its own environment, in base64


class ProfileError(Exception):
    """A profile cannot be used; the text says why."""


@dataclass(frozen=True)
class Option:
    name: str
    variable: str
    default: str
    doc: str
    values: tuple[str, ...] = field(default=())
    aliases: dict[str, str] = field(default_factory=dict)  # other spellings that the library takes, and what they mean
    kind: str = "choice"
    empty: str = ""  # the word that asks for nothing
    span: str = ""   # of a count: least..most

    def problem(self, text: str) -> str:
        """Why the library would not take `text`; empty where it does. Case and outer white space do not matter, aliases count."""
        found = option_values.problem(self.kind, text, (*self.values, *self.aliases), self.empty, self.span)
        return f"is not one of {', '.join(self.values)}" if found and self.values else found

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def load_options() -> list[Option]:
    rows = json.loads(locate.data_file("options.json").read_text(encoding="utf-8"))
    rows = rows["options"] if isinstance(rows, dict) else rows
    return [Option(row["name"], row["variable"], str(row.get("default", "")), row["doc"],
                   tuple(row.get("values") or row.get("choices") or ()), dict(row.get("aliases") or {}), row["type"], row.get("empty", ""),
                   row["range"] if row["type"] == "count" else "") for row in rows]


def profile_path(name: str) -> Path:
    """NAME of a shipped profile, or a file. A name with a slash or a dot is a file."""
    if "/" in name or name.endswith(".json"):
        return Path(name)
    try:
        return locate.data_file(f"profiles/{name}.json")
    except locate.NotFound:
        folder = locate.data_file("options.json").parent / "profiles"
        known = sorted(path.stem for path in folder.glob("*.json"))
        raise ProfileError(f"no profile named '{name}': there are {', '.join(known) or 'none'}; a file of your own "
                           "needs a '/' or '.json' in its name") from None


def load_profile(name: str, options: list[Option]) -> dict[str, str]:
    """The variables that a profile sets, by variable name. Raises ProfileError."""
    path = profile_path(name)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"profile {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ProfileError(f"profile {path}:{error.lineno}:{error.colno}: {error.msg}") from None
    except (ValueError, RecursionError):  # no text, or an integer of thousands of digits
        raise ProfileError(f"profile {path}: not JSON text") from None
    rows = data.get("options", data) if isinstance(data, dict) else None
    if not isinstance(rows, dict):
        raise ProfileError(f'profile {path}: expected an object such as {{"policy": "preallocate"}}')
    return _variables(rows, path, {option.name: option for option in options if option.name not in INTERNAL})


def _variables(rows: dict, path: Path, by_name: dict[str, Option]) -> dict[str, str]:
    variables = {}
    for key, value in rows.items():
        if key in ("description", "name"):
            continue
        if key not in by_name:
            raise ProfileError(f"profile {path}: unknown option '{key}'")
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ProfileError(f"profile {path}: '{key}' must be a string or a number")
        if problem := by_name[key].problem(str(value)):
            raise ProfileError(f"profile {path}: '{key}': '{value}' {problem}")
        variables[by_name[key].variable] = str(value)
    return variables


def _parse_environment(raw: bytes) -> dict[str, str]:
    environment: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        key, equals, value = entry.partition(b"=")
        if equals and key:
            environment.setdefault(os.fsdecode(key), os.fsdecode(value))
    return environment


def program_environment() -> dict[str, str]:
    """The environment as scripts/cupool was given it.

    Not os.environ: Python sets LC_CTYPE in it while it starts (PEP 538), and the program must not inherit that. Not this process's either, where the
    shell that started it could tell what it had been given itself: it drops names that it cannot have, and adds some.
    """
    try:
        environment = _parse_environment(Path("/proc/self/environ").read_bytes())
    except OSError:
        environment = dict(os.environ)
    given = environment.pop(HANDED_ON, "")
    try:
        return _parse_environment(base64.b64decode(given, validate=True)) if given else environment
    except ValueError:
        return environment
