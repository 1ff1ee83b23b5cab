"""Whether the library takes a value: what config/amount.cpp, units.cpp, kinds.cpp and pattern.cpp read, and why not.

For typing errors in flags and profiles, which are told before the program starts, and for doctor. In the environment a bad value stops nothing: the
library uses the default and says so. A test compares the two.
"""

from __future__ import annotations

import os
import re
from fractions import Fraction

_PREFIXES = "kmgtpe"
_MOST = 1 << 63
_MOST_TERMS, _MOST_ORDINAL, _MOST_TEXT = 8, 63, 256
_SWITCHES = ("off", "on", "none", "true", "false", "yes", "no", "0", "1", "stdout", "stderr")
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)\s*(.*)", re.ASCII | re.DOTALL)
_PIECE = re.compile(r"[^%]|%[phr%]|%q\{[A-Za-z_]\w*\}", re.ASCII | re.DOTALL)


class BadValue(ValueError):
    """The text says why."""


def problem(kind: str, text: str, values: tuple[str, ...] = (), empty: str = "", span: str = "") -> str:
    """Why the library would use the default instead of `text`; empty where it takes it. `values`: of a choice, aliases included; `empty`: the word that
    asks for nothing; `span`: least..most of a count."""
    text = text.strip(" \t\n\v\f\r")
    if not text or (empty and text.lower() == empty.lower()):
        return ""
    try:
        if kind == "choice" and text.lower() not in (value.lower() for value in values):
            raise BadValue(f"is not one of {', '.join(values)}")
        elif kind == "count":
            _count(text, span)
        elif kind == "text" and not re.fullmatch(r"[A-Za-z0-9._-]{0,%d}" % _MOST_TEXT, text):
            raise BadValue("is not up to 256 of A-Z a-z 0-9 . _ -")
        elif kind == "pattern" or (kind == "report" and text.lower() not in ("none", "stderr")):
            if text.lower() in _SWITCHES:
                raise BadValue(f"is no file name: the word here is {empty or 'none'}, a file of that name ./{text}")
            _pattern(text)
        elif kind in _READERS and not (kind == "amount" and text == "-1"):
            _READERS[kind](text)
    except BadValue as error:
        return str(error)
    except ValueError:  # more digits than Python reads
        return "is too long"
    return ""


def _scaled(text: str, of_bytes: bool) -> int:
    what = "size such as 512MiB" if of_bytes else "count such as 64Ki"
    match = _NUMBER.fullmatch(text)
    unit = _multiplier(match[2].lower(), of_bytes) if match else 0
    if not match or not unit:
        raise BadValue(f"is no {what}")
    if unit == 1 and "." in match[1]:
        raise BadValue("is not a whole number")
    value = int(Fraction(match[1]) * unit)
    if value > _MOST:
        raise BadValue("is too large")
    return value


def _multiplier(unit: str, of_bytes: bool) -> int:
    """0: no unit."""
    if unit == "" or (of_bytes and unit == "b"):
        return 1
    power = _PREFIXES.find(unit[0]) + 1
    tails = {"": 1024, "i": 1024, **({"ib": 1024, "b": 1000} if of_bytes else {})}
    return tails[unit[1:]] ** power if power and unit[1:] in tails else 0


def _size(text: str) -> int:
    return _scaled(text, True)


def _count(text: str, span: str) -> None:
    value = _scaled(text, False)
    least, _, most = span.partition("..")
    if most and not _size(least) <= value <= _size(most):
        raise BadValue(f"is not from {least} to {most}")


def _term(text: str) -> bool:
    """Whether it is more than nothing."""
    text = text.strip()
    match = _NUMBER.fullmatch(text)
    if match and (match[2] == "%" or (match[2] == "" and "." in match[1])):
        share = Fraction(match[1]) / (100 if match[2] else 1)
        if share > 1:
            raise BadValue("is more than the whole device")
        return int(share * 10**12 + Fraction(1, 2)) > 0
    return _size(text) > 0


def _amount(text: str) -> bool:
    text = text.strip()
    inside = re.fullmatch(r"min\s*\((.*)\)", text, re.ASCII | re.IGNORECASE | re.DOTALL)
    terms = _split(inside[1]) if inside else [text]
    if len(terms) > _MOST_TERMS:
        raise BadValue("has more than 8 amounts in min()")
    return all([_term(term) for term in terms])


def _device_amounts(text: str) -> None:
    seen = set()
    for entry in _split(text):
        before, colon, amount = entry.partition(":")
        ordinal = before.strip() if colon else None
        if ordinal is not None and (not re.fullmatch(r"\d+", ordinal, re.ASCII) or int(ordinal) > _MOST_ORDINAL):
            raise BadValue(f"'{ordinal}' is no device ordinal from 0 to {_MOST_ORDINAL}")
        value = amount if colon else entry
        if value.strip().lower() != "none" and not _amount(value):
            raise BadValue("must be more than 0")
        key = None if ordinal is None else int(ordinal)
        if key in seen:
            raise BadValue("has two entries for one device" if colon else "has two entries without a device ordinal")
        seen.add(key)


def ordinals(text: str) -> list[int]:
    """The device ordinals of a list of amounts that problem() finds nothing wrong with."""
    return [int(entry.partition(":")[0]) for entry in _split(text) if ":" in entry]


def _split(text: str) -> list[str]:
    """At commas that are not inside parentheses."""
    entries, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth <= 0:
            entries.append("")
        else:
            entries[-1] += letter
    return entries


def _pattern(text: str) -> None:
    if text.endswith("/") or os.path.basename(text) in (".", ".."):
        raise BadValue("is a folder, not a file")
    if text.startswith("~/"):
        raise BadValue("begins with ~, which is for shells to expand, and did not happen: write the folder out")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise BadValue("has a control character in a file name")
    if not re.fullmatch(f"(?:{_PIECE.pattern})+", text, re.ASCII | re.DOTALL):
        raise BadValue("has a % that starts none of %p %h %r %q{VAR} %%")


_READERS = {"amount": _amount, "device_amounts": _device_amounts, "size": _size}
