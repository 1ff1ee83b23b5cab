"""`cupool doctor`: will the pool work here, and what would happen to a command.

Runs the checks and prints them; the checks themselves are in doctor_machine.py and doctor_command.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, asdict

from cupool_lib.terminal import Paint, printable, put

OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass
class Finding:
    """One line of the answer. `advice` says what to do; it is empty for ok."""

    check: str
    status: str
    detail: str
    advice: str = ""


def run(command: list[str], library: str | None, as_json: bool) -> int:
    from cupool_lib import doctor_command, doctor_machine
    findings = doctor_machine.check(library)
    if command:
        findings += doctor_command.check(command, findings)
    failed = any(finding.status == FAILURE for finding in findings)
    if as_json:
        put(json.dumps({"ok": not failed, "checks": [asdict(finding) for finding in findings]}, indent=2) + "\n")
    else:
        put(render(findings))
    return 1 if failed else 0


def render(findings: list[Finding]) -> str:
    paint = Paint()
    style = {OK: ("green",), WARNING: ("yellow", "bold"), FAILURE: ("red", "bold")}
    lines = []
    for finding in findings:
        lines.append(f"{paint(f'{finding.status:8}', *style[finding.status])} {finding.check:12} {printable(finding.detail)}")
        if finding.advice:
            lines.append(f"{'':8} {'':12} {paint('-> ' + printable(finding.advice), 'bold')}")
    counts = {status: sum(finding.status == status for finding in findings) for status in (OK, WARNING, FAILURE)}
    plural = {status: "" if counts[status] == 1 else "s" for status in counts}
    lines.append(f"{counts[OK]} ok, {counts[WARNING]} warning{plural[WARNING]}, {counts[FAILURE]} failure{plural[FAILURE]}")
    return "\n".join(lines) + "\n"
