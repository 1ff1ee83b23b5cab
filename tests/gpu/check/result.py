"""The JSON of a run and the table at its end. One file per run: <date>-<device>.json, written whole or not at all."""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import goals
from outcome import Outcome
from pairs import PAIR
from parts import Part

SCHEMA = "cupool.gpu-check/1"
Row = tuple[Part, Outcome, float]


def as_json(rows: list[Row], facts: dict[str, Any], simulated: bool, wall_s: float) -> dict[str, Any]:
    parts = [{"name": part.name, "question": part.question, "status": result.status, "reason": result.reason,
              "limit_s": part.limit_s, "wall_s": round(taken_s, 3), "differing": len(result.differing), "answers": result.answers,
              "goals": [goal.as_json() for goal in result.goals]}
             for part, result, taken_s in rows]
    counts = {status: sum(1 for part in parts if part["status"] == status) for status in ("passed", "failed", "timeout", "skipped")}
    verdicts = [goal.verdict for _, result, _ in rows for goal in result.goals]
    counts["goals"] = {verdict: verdicts.count(verdict) for verdict in (goals.MET, goals.MISSED, goals.NOT_MEASURED)}
    return {"schema": SCHEMA, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "simulated": simulated,
            "machine": {"driver": facts, "python": sys.version.split()[0], "kernel": os.uname().release, "cpus": os.cpu_count()},
            "wall_s": round(wall_s, 3), "summary": {**counts, "differing": sum(part["differing"] for part in parts)}, "parts": parts}


def write(folder: Path, result: dict[str, Any], ends_badly: list[str]) -> Path:
    """The JSON's path. A run never replaces another: the second of a day is called <date>-<device>-2. What programs said that did not end
    well lies beside it, as .log."""
    name = "simulated" if result["simulated"] else result["machine"]["driver"].get("device") or "unknown"
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{result['date'][:10]}-{slug}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 100))]
    path = next((folder / f"{one}.json" for one in names if not (folder / f"{one}.json").exists()), folder / f"{stem}.json")
    temporary = path.with_suffix(f".json.{os.getpid()}")
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    if ends_badly:
        path.with_suffix(".log").write_text("\n".join(ends_badly), encoding="utf-8")
    return path


def _note(part: dict[str, Any]) -> str:
    if part["status"] != "passed":
        return f"{part['status']}: {part['reason']}" if part["status"] == "skipped" else part["reason"]
    left_out = sum(1 for one in part["answers"] if "left_out" in one)
    notes = [f"{len(part['answers']) - left_out} answers"]
    notes += [f"{part['differing']} differ from what the code assumes"] if part["differing"] else []
    notes += [f"{left_out} left out"] if left_out else []
    still_open = sum(1 for one in part["answers"] if one["question"].startswith("open: "))
    notes += [f"{still_open} known to be open"] if still_open else []
    return ", ".join(notes)


def _in_words(answer: dict[str, Any]) -> str:
    if "bytes" in answer:
        return f"{answer['bytes'] / (1 << 30):.2f} GiB ({answer['source']})"
    unit, scale = ("ms", 1e6) if answer["median_ns"] >= 1e6 else ("us", 1e3)
    return f"{answer['median_ns'] / scale:.2f} {unit} ({answer['p10_ns'] / scale:.2f} to {answer['p90_ns'] / scale:.2f})"


def _pairs(part: dict[str, Any]) -> list[str]:
    """A row for each way to allocate, a column for each size and number of threads."""
    rows: dict[str, dict[str, int]] = {}
    for one in part["answers"]:
        found = PAIR.fullmatch(one["question"])
        if found and "answer" in one:
            rows.setdefault(found["who"], {})[found["shape"]] = one["answer"]["median_ns"]
    if not rows:
        return []
    width, shapes = max(map(len, rows)), list(dict.fromkeys(shape for row in rows.values() for shape in row))
    lines = [f"  {'ns per pair, median':<{width}}  " + "  ".join(f"{shape:>20}" for shape in shapes)]
    return lines + [f"  {who:<{width}}  " + "  ".join(f"{row.get(shape, '-'):>20}" for shape in shapes) for who, row in rows.items()]


def figures(result: dict[str, Any]) -> list[str]:
    """Step times, peaks, largest batches and pair costs: what a person compares."""
    lines = []
    for part in result["parts"]:
        lines += _pairs(part)
        for one in part["answers"]:
            question, answer = one["question"], one.get("answer")
            if any(word in question for word in (": steps, ", ": peak memory, ")) and isinstance(answer, dict):
                lines.append(f"  {part['name']}: {question}: {_in_words(answer)}")
            elif ": largest batch that fits" in question and answer is not None:
                lines.append(f"  {part['name']}: {question}: {answer}")
    return lines


def table(result: dict[str, Any]) -> str:
    width = max((len(part["name"]) for part in result["parts"]), default=4)
    lines = [f"{'part':<{width}}  {'status':<7}  {'s':>6}  note"]
    lines += [f"{part['name']:<{width}}  {part['status']:<7}  {part['wall_s']:>6.1f}  {_note(part)}" for part in result["parts"]]
    for part in result["parts"]:
        for one in part["answers"]:
            if "assumed" in one and one["answer"] != one["assumed"]:
                lines.append(f"  differs  {part['name']}: {one['question']}: {one['answer']} (assumed: {one['assumed']})")
    lines += figures(result)
    lines += goals.table([(part["name"], goals.Goal(**goal)) for part in result["parts"] for goal in part["goals"]])
    summary = result["summary"]
    lines.append("goals: " + ", ".join(f"{count} {verdict}" for verdict, count in summary["goals"].items()))
    lines.append(f"{summary['passed']} passed, {summary['failed']} failed, {summary['timeout']} timed out, {summary['skipped']} skipped, "
                 f"{summary['differing']} answers differ from what the code assumes; {result['wall_s']:.0f} s")
    return "\n".join(lines)
