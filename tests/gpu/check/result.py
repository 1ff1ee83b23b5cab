"""The JSON of a run and the table at its end. One file per run: <date>-<device>.json, written whole or not at all."""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from outcome import Outcome
from parts import Part

SCHEMA = "cupool.gpu-check/1"
Row = tuple[Part, Outcome, float]


def as_json(rows: list[Row], facts: dict[str, Any], simulated: bool, wall_s: float) -> dict[str, Any]:
    parts = [{"name": part.name, "question": part.question, "status": result.status, "reason": result.reason,
              "limit_s": part.limit_s, "wall_s": round(taken_s, 3), "differing": len(result.differing), "answers": result.answers}
             for part, result, taken_s in rows]
    counts = {status: sum(1 for part in parts if part["status"] == status) for status in ("passed", "failed", "timeout", "skipped")}
    return {"schema": SCHEMA, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "simulated": simulated,
            "machine": {"driver": facts, "python": sys.version.split()[0], "kernel": os.uname().release, "cpus": os.cpu_count()},
            "wall_s": round(wall_s, 3), "summary": {**counts, "differing": sum(part["differing"] for part in parts)}, "parts": parts}


def write(folder: Path, result: dict[str, Any]) -> Path:
    name = "simulated" if result["simulated"] else result["machine"]["driver"].get("device") or "unknown"
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['date'][:10]}-{slug}.json"
    temporary = path.with_suffix(f".json.{os.getpid()}")
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def _note(part: dict[str, Any]) -> str:
    if part["status"] != "passed":
        return f"{part['status']}: {part['reason']}" if part["status"] == "skipped" else part["reason"]
    left_out = sum(1 for one in part["answers"] if "left_out" in one)
    notes = [f"{len(part['answers']) - left_out} answers"]
    notes += [f"{part['differing']} differ from what the code assumes"] if part["differing"] else []
    notes += [f"{left_out} left out"] if left_out else []
    return ", ".join(notes)


def table(result: dict[str, Any]) -> str:
    width = max((len(part["name"]) for part in result["parts"]), default=4)
    lines = [f"{'part':<{width}}  {'status':<7}  {'s':>6}  note"]
    lines += [f"{part['name']:<{width}}  {part['status']:<7}  {part['wall_s']:>6.1f}  {_note(part)}" for part in result["parts"]]
    for part in result["parts"]:
        for one in part["answers"]:
            if "assumed" in one and one["answer"] != one["assumed"]:
                lines.append(f"  differs  {part['name']}: {one['question']}: {one['answer']} (assumed: {one['assumed']})")
    summary = result["summary"]
    lines.append(f"{summary['passed']} passed, {summary['failed']} failed, {summary['timeout']} timed out, {summary['skipped']} skipped, "
                 f"{summary['differing']} answers differ from what the code assumes; {result['wall_s']:.0f} s")
    return "\n".join(lines)
