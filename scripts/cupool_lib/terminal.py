"""How text looks and where it goes: colour when it may, sizes and times for people, bars; stdout and stderr that may be closed or full.

Colour only on a terminal with NO_COLOR unset or empty. Nothing here knows what it prints.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
from typing import TextIO, cast

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}
_LINE_MAX = 900
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class OutputFailed(Exception):
    """stdout does not take what it was given; the text says why."""


class _Closed(io.TextIOBase):
    """Stands in for a stream that the caller has closed (for which Python has None) or that has failed (which Python would flush again at its end)."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _closed() -> TextIO:
    return cast(TextIO, _Closed())


def open_streams() -> None:
    """To be called before anything is printed: puts streams that raise OSError in the place of those that the caller has closed."""
    sys.stdout, sys.stderr = sys.stdout or _closed(), sys.stderr or _closed()


def put(text: str, at_once: bool = True) -> None:
    """Writes `text` to stdout. Where that fails it is given up, since Python would try again at its end and change the exit code. Raises OutputFailed."""
    try:
        if text:
            sys.stdout.write(text)
        if at_once:
            sys.stdout.flush()
    except OSError as error:
        sys.stdout = _closed()
        raise OutputFailed(f"stdout: {error.strerror or error}") from None


def tell(line: str) -> None:
    """One line on stderr; where that is closed or full, nobody hears it, and that is all."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        sys.stderr = _closed()


class Paint:
    """Wraps text in colour, or leaves it alone."""

    def __init__(self, stream=None):
        stream = sys.stdout if stream is None else stream
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.enabled = bool(stream.isatty() and not plain)
        encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
        self.full, self.empty, self.dot = ("█", "░", "·") if encoding == "utf8" else ("#", ".", "-")
        columns = shutil.get_terminal_size((100, 24)).columns if stream.isatty() else 100
        self.width = max(60, min(columns, 120))

    def __call__(self, text: str, *styles: str) -> str:
        if not self.enabled or not styles:
            return text
        return "\x1b[%sm%s\x1b[0m" % (";".join(_STYLES[style] for style in styles), text)

    def bar(self, parts: list[tuple[int, str]], total: int, width: int) -> str:
        """A bar of `width` cells; each part gets its share, the rest stays empty."""
        if total <= 0:
            return self.empty * width
        out, drawn, sum_so_far = "", 0, 0
        for amount, style in parts:
            sum_so_far += max(0, amount)
            cells = min(width, round(width * sum_so_far / total)) - drawn
            if cells > 0:
                out += self(self.full * cells, style)
                drawn += cells
        return out + self(self.empty * (width - drawn), "dim")


def printable(text: object) -> str:
    """`text` without control characters: reports and pages are other programs' bytes, and terminals obey escapes."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


def size(amount: int | None) -> str:
    """1536 -> '1.50 KiB'."""
    if amount is None:
        return "unknown"
    value, unit = float(amount), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{amount} B" if unit == 0 else f"{value:.2f} {_UNITS[unit]}"


def size_up(amount: int) -> str:
    """1537 -> '1.51 KiB', rounded up: for what is missing, so that whoever adds as much has enough."""
    unit = 0
    while amount >> 10 * (unit + 1) and unit < len(_UNITS) - 1:
        unit += 1
    hundredths = -(-amount * 100 >> 10 * unit)
    return f"{amount} B" if unit == 0 else f"{hundredths // 100}.{hundredths % 100:02} {_UNITS[unit]}"


def percent(fraction: float | None) -> str:
    return "none free" if fraction is None else f"{100 * fraction:.1f}%"


def count(number: int) -> str:
    return f"{number:,}"


def several(number: int, noun: str) -> str:
    """1 -> '1 block', 1000 -> '1,000 blocks'."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def duration(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def fail(message: str, code: int) -> int:
    """One line on stderr, not longer than a person reads; returns the exit code."""
    line = printable(message)
    tell("cupool: " + (line if len(line) <= _LINE_MAX else line[:_LINE_MAX] + " ..."))
    return code
