"""What a part came to: its status, the answers that it printed as lines of JSON, and where they differ from assumptions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, TIMEOUT, SKIPPED = "passed", "failed", "timeout", "skipped"


@dataclass
class Outcome:
    status: str
    reason: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Any] = field(default_factory=list)  # goals.Goal

    @property
    def differing(self) -> list[dict[str, Any]]:
        """Answers that are not what the code assumes."""
        return [one for one in self.answers if "assumed" in one and one["answer"] != one["assumed"]]

    @property
    def left_out(self) -> list[dict[str, Any]]:
        return [one for one in self.answers if "left_out" in one]


def parse_answers(output: str) -> tuple[list[dict[str, Any]], str]:
    """The answers among the lines, and the first line that looks like one and cannot be read ("" if there is none)."""
    answers, bad = [], ""
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        try:
            one = json.loads(line)
        except ValueError:
            bad = bad or line[:120]
            continue
        if isinstance(one, dict) and "question" in one and ("answer" in one or "left_out" in one):
            answers.append(one)
        else:
            bad = bad or line[:120]
    return answers, bad


def skipped(reason: str) -> Outcome:
    return Outcome(SKIPPED, reason)


def failed(reason: str, answers: list[dict[str, Any]] | None = None) -> Outcome:
    return Outcome(FAILED, reason, answers or [])


def of_ended(ended: Any) -> Outcome:
    """A program that speaks in answers: it passed if it ended well and said something."""
    answers, bad = parse_answers(ended.output)
    if ended.timed_out:
        return Outcome(TIMEOUT, ended.reason(), answers)
    if ended.code != 0:
        return Outcome(FAILED, ended.reason(), answers)
    if bad:
        return Outcome(FAILED, f"a line that cannot be read: {bad}", answers)
    if not answers:
        return Outcome(FAILED, "it answered nothing", answers)
    return Outcome(PASSED, "", answers)
