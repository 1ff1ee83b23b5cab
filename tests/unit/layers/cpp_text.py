"""C++ sources as text with the parts blanked out that a rule must not look at. Line numbers stay as they are."""

from __future__ import annotations

import re

# Numbers first: the ' in 1'000 starts no character.
_LEXEME = re.compile(
    r"(?P<number>\b\d[\w.']*)"
    r'|(?P<raw>R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
    r"|(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)", re.DOTALL)


def _blank(text: str) -> str:
    return "".join(character if character == "\n" else " " for character in text)


def without_comments(text: str) -> str:
    return _LEXEME.sub(lambda match: _blank(match.group()) if match.group("comment") else match.group(), text)


def code_only(text: str) -> str:
    """Without comments and without what stands in strings; the names of quoted includes and `extern "C"` stay."""
    text = without_comments(text)

    def shorten(match: re.Match) -> str:
        before = text[:match.start()].rpartition("\n")[2].strip()
        is_kept = before.startswith("#") or before.endswith("extern")
        return match.group() if match.group("number") or is_kept else _blank(match.group())

    return _LEXEME.sub(shorten, text)


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
