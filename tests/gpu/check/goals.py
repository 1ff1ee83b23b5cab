"""What the pool is to be measured against, and whether it was met. A goal that was missed is no failure of its part: the program ran
as it should. A goal whose figures are missing is "not measured", with the reason; so is every goal on the simulated driver."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"
SIMULATED = "the simulated driver's times mean nothing"


@dataclass(frozen=True)
class Goal:
    goal: str                   # what is asked
    verdict: str
    measured: float | None      # a ratio; the goal is at most `wanted`
    wanted: float
    note: str                   # against what, the noise, or why it was not measured

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def not_measured(goal: str, why: str) -> Goal:
    return Goal(goal, NOT_MEASURED, None, 1.0, why)


def at_most_best(goal: str, ours: float | None, peers: dict[str, float], simulated: bool, noise: str = "", below: bool = False) -> Goal:
    """`ours` against the smallest of `peers`: at most as large, or (`below`) smaller."""
    if simulated:
        return not_measured(goal, SIMULATED)
    if ours is None:
        return not_measured(goal, "the pool's own figure is missing")
    if not peers:
        return not_measured(goal, "no peer has a figure")
    best = min(peers, key=lambda name: peers[name])
    ratio = ours / peers[best] if peers[best] > 0 else float("inf")
    met = ratio < 1.0 if below else ratio <= 1.0
    note = f"against {best}" + (f"; {noise}" if noise else "")
    return Goal(goal, MET if met else MISSED, round(ratio, 4), 1.0, note)


def table(rows: list[tuple[str, Goal]]) -> list[str]:
    """One line each; goals of a part that were not measured for one and the same reason share a line."""
    lines, shared = [], {}
    for part, goal in rows:
        if goal.verdict == NOT_MEASURED:
            shared[part, goal.note] = shared.get((part, goal.note), 0) + 1
        else:
            lines.append(f"  goal  {'pass' if goal.verdict == MET else 'FAIL'} {goal.measured:.3f}  {part}: {goal.goal} ({goal.note})")
    return lines + [f"  goal  not measured  {part}: {count} goals ({note})" for (part, note), count in shared.items()]
