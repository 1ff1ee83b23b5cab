"""What is wrong with the reports that a run has left: by their schema, and by their own arithmetic."""
from __future__ import annotations

import functools
import itertools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from cupool_lib import json_schema, locate, validate  # noqa: E402

MOST_TOLD = 3


@functools.lru_cache(maxsize=1)
def schema() -> dict:
    return json.loads(locate.data_file("report.schema.json").read_text(encoding="utf-8"))


def problems(report: dict) -> list[str]:
    """The arithmetic is looked at only where the schema holds."""
    broken = [f"the report is not valid: {problem}" for problem in itertools.islice(json_schema.problems(report, schema()), MOST_TOLD)]
    return broken or [f"the report contradicts itself: {problem}" for problem in itertools.islice(validate.arithmetic(report), MOST_TOLD)]


def problems_in(folder: Path) -> list[str]:
    """Of each report there, the ones of an out-of-memory included."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found += [f"{path.suffixes[0]}: {problem}" for problem in problems(json.loads(path.read_text(encoding="utf-8")))]
        except ValueError as error:
            found.append(f"{path.suffixes[0]}: no JSON: {error}")
    return found
