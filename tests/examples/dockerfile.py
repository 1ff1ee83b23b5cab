"""Reads a Dockerfile as far as the examples' tests need it: its stages, and the instructions of each, words split as a shell does."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field


@dataclass
class Stage:
    base: str
    name: str = ""
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all_of(self, keyword: str) -> list[str]:
        return [rest for word, rest in self.instructions if word == keyword]

    def copies(self) -> list[tuple[str, list[str], str]]:
        """(stage that they come from, or "", sources, destination) of each COPY."""
        found = []
        for rest in self.all_of("COPY"):
            words = shlex.split(rest)
            origin = [word[len("--from="):] for word in words if word.startswith("--from=")]
            names = [word for word in words if not word.startswith("--")]
            found.append((origin[0] if origin else "", names[:-1], names[-1]))
        return found

    def environment(self) -> dict[str, str]:
        pairs = [word.partition("=") for rest in self.all_of("ENV") for word in shlex.split(rest)]
        return {name: value for name, _, value in pairs}


def read(text: str) -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first stage with their defaults, and the stages."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    arguments, stages = {}, []
    for line in filter(None, map(str.strip, text.splitlines())):
        keyword, _, rest = line.partition(" ")
        if keyword == "FROM":
            words = rest.split()
            stages.append(Stage(words[0], words[2] if words[1:2] == ["AS"] else ""))
        elif keyword == "ARG" and not stages:
            name, _, value = rest.partition("=")
            arguments[name] = value
        else:
            stages[-1].instructions.append((keyword, rest.strip()))
    return arguments, stages
