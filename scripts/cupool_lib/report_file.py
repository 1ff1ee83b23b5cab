"""Loads a report; whatever is wrong with the file becomes one line that says where.

A report is another program's output: sizes are bounded, and nothing is assumed about its shape before `Fields` has
looked. The meanings are those of config/report.schema.json.
"""

from __future__ import annotations

import collections
import json
import os
import re
import stat
from typing import Any, NoReturn, overload

SCHEMA_NAME = "cupool.report/1"
_MAX_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 20
_INTEGERS = range(-2**63, 2**64)
# What can be left of a word, a number or an escape where the file ends in it.
_CUT = re.compile(r"|t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\.|[eE][-+]?")
_CUT_ESCAPE = re.compile(r"u?[0-9a-fA-F]{0,4}")


class _NotAllowed(ValueError):
    """JSON for Python, but not for a report."""


class BadReport(Exception):
    """`FILE:line:column: what is wrong`, or `FILE: …` or `FILE: /json/path: …`."""


def _no_duplicates(pairs: list) -> dict:
    result = dict(pairs)
    if len(result) != len(pairs):
        (twice, _), = collections.Counter(key for key, _ in pairs).most_common(1)
        raise _NotAllowed(f"the key '{twice}' appears twice in one object")
    return result


def _no_constants(name: str) -> NoReturn:
    raise _NotAllowed(f"{name} is not JSON")


def _read(path: str) -> str:
    """A pipe that the caller hands over (/dev/stdin, <(…)) is read to its end; one that lies in a folder might never have a writer."""
    if not path:
        raise BadReport("the file's name is empty")
    kind = os.stat(path).st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind) and not os.path.realpath(path).startswith(("/proc/", "/dev/pts/", "/dev/tty")):
        raise BadReport(f"{path}: not a regular file")
    too_large = BadReport(f"{path}: larger than {_MAX_BYTES >> 30} GiB")
    content = bytearray()
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise too_large
        while chunk := file.read(_CHUNK_BYTES):  # of a pipe nobody knows how much comes
            content += chunk
            if len(content) > _MAX_BYTES:
                raise too_large
    return content.decode("utf-8")


def _damage(path: str, text: str, error: json.JSONDecodeError) -> BadReport:
    if text.startswith("\ufeff"):
        return BadReport(f"{path}:1:1: a byte order mark stands before the JSON")
    whole = text.rstrip()
    rest = _CUT_ESCAPE if error.msg.startswith("Invalid \\u") else _CUT
    if error.msg.startswith("Unterminated string") or rest.fullmatch(whole[error.pos:]):
        return BadReport(f"{path}:{whole.count(chr(10)) + 1}:{len(whole) - whole.rfind(chr(10))}: the file ends here: it was cut short")
    if not text[: error.pos].strip():
        return BadReport(f"{path}:{error.lineno}:{error.colno}: not JSON, which a report is")
    return BadReport(f"{path}:{error.lineno}:{error.colno}: {error.msg}")


def load(path: str) -> dict:
    """The report in `path`. Raises BadReport."""
    try:
        text = _read(path)
        report = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
    except OSError as error:
        raise BadReport(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadReport(f"{path}: byte {error.start}: not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise _damage(path, text, error) from None
    except RecursionError:
        raise BadReport(f"{path}: nested too deeply") from None
    except _NotAllowed as error:
        raise BadReport(f"{path}: {error}") from None
    except ValueError:  # Python reads none of thousands of digits
        raise BadReport(f"{path}: an integer is too large") from None
    if not isinstance(report, dict):
        raise BadReport(f"{path}:1:1: expected an object, found {kind_of(report)}")
    name = report.get("schema")
    if name != SCHEMA_NAME:
        raise BadReport(f"{path}: /schema: expected \"{SCHEMA_NAME}\", found {json.dumps(name)[:60]}")
    return report


def kind_of(value: object) -> str:
    """JSON's name for a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return {int: "integer", float: "number", str: "string", list: "array", dict: "object"}[type(value)]


class Fields:
    """Typed access to a piece of a report: a wrong type raises BadReport with the place, a missing one gives the default."""

    def __init__(self, value: object, place: str, file: str):
        self.place, self.file = place, file
        if not isinstance(value, dict):
            self._wrong(place, value, "object")
        self.value: dict[str, Any] = value

    def _wrong(self, place: str, value: object, expected: str) -> NoReturn:
        raise BadReport(f"{self.file}: {place or '/'}: expected {expected}, found {kind_of(value)}")

    def _get(self, key: str, types: tuple, expected: str, default):
        value = self.value.get(key)
        if value is None:
            return default
        if not isinstance(value, types) or isinstance(value, bool):
            self._wrong(f"{self.place}/{key}", value, expected)
        return value

    @overload
    def integer(self, key: str, default: int = 0) -> int: ...

    @overload
    def integer(self, key: str, default: None) -> int | None: ...

    def integer(self, key: str, default: int | None = 0) -> int | None:
        """1.0 is one too, as in JSON Schema."""
        value = self._get(key, (int, float), "integer", default)
        if isinstance(value, float):
            if not value.is_integer():
                self._wrong(f"{self.place}/{key}", value, "integer")
            value = int(value)
        if value is not None and value not in _INTEGERS:
            raise BadReport(f"{self.file}: {self.place}/{key}: expected an integer of 64 bits, found a larger one")
        return value

    def number(self, key: str) -> float | None:
        value = self._get(key, (int, float), "number or null", None)
        if isinstance(value, int) and value not in _INTEGERS:
            raise BadReport(f"{self.file}: {self.place}/{key}: the number is too large")
        return value

    def flag(self, key: str) -> bool | None:
        value = self.value.get(key)
        if value is not None and not isinstance(value, bool):
            self._wrong(f"{self.place}/{key}", value, "boolean or null")
        return value

    def text(self, key: str, default: str = "") -> str:
        return self._get(key, (str,), "string", default)

    def mapping(self, key: str) -> "Fields":
        return Fields(self._get(key, (dict,), "object", {}), f"{self.place}/{key}", self.file)

    def items(self, key: str) -> list["Fields"]:
        """The objects of a list."""
        values = self._get(key, (list,), "array", [])
        return [Fields(value, f"{self.place}/{key}/{index}", self.file) for index, value in enumerate(values)]

    def texts(self, key: str) -> list[str]:
        values = self._get(key, (list,), "array", [])
        for index, value in enumerate(values):
            if not isinstance(value, str):
                self._wrong(f"{self.place}/{key}/{index}", value, "string")
        return values

    def integers(self) -> dict[str, int]:
        """All of it, as {key: integer}."""
        return {key: self.integer(key) for key in self.value}
