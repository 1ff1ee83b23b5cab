"""`cupool explain WORD`: what a word of the report means.

No text of its own: causes come from causes.json, everything that a report holds from the report's schema, options from the options table, so that an
explanation cannot drift from what is written. A word may mean several things (a cause and an option, say): all are told.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import Iterator

from cupool_lib import locate
from cupool_lib.options import INTERNAL, load_options
from cupool_lib.terminal import fail, put

# What a part of the report is called; where none of these is passed on the way to a word, it is "report".
_KINDS = {"figures": "metric", "fragmentation": "metric", "ledger": "ledger", "counters": "counter", "pages": "pages", "tier": "pages", "oom": "oom",
          "suggestion": "oom"}
_TITLES = {"cause": "Causes of an out-of-memory, in the order in which they are tried", "oom": "An out-of-memory (ooms[])", "metric": "Fragmentation",
           "ledger": "Parts of the ledger", "pages": "Physical handles (devices[].pages), by size in tiers", "counter": "Counters",
           "report": "The rest of the report", "option": "Options"}
_CLOSE = 0.7


@dataclass(frozen=True)
class Entry:
    word: str
    kind: str
    text: str


def entries() -> list[Entry]:
    found = list(_causes())
    schema = json.loads(locate.data_file("report.schema.json").read_text(encoding="utf-8"))
    for name, definition in schema["$defs"].items():
        found += _described(definition, _KINDS.get(name, "report"))
    found += _described(schema, "report")
    for option in load_options():
        if option.name not in INTERNAL:
            found.append(Entry(option.name, "option", f"{option.doc}. Variable {option.variable}, flag {option.flag}, default {option.default}."))
    return list(dict.fromkeys(found))


def _causes() -> Iterator[Entry]:
    table = json.loads(locate.data_file("causes.json").read_text(encoding="utf-8"))
    for row in table["causes"]:
        formula = f"Holds when {row['holds_when']}. The shortfall is {row['shortfall']}."
        letters = [f"  {letter:4} {table['letters'][letter]}" for letter in re.findall(r"\b[A-Z]+\b", formula) if letter in table["letters"]]
        lines = [row["meaning"], formula, *dict.fromkeys(letters), "What to do:"]
        yield Entry(row["cause"], "cause", "\n".join(lines + [f"  - {advice}" for advice in row["what_to_do"]]))


def _described(schema: dict, kind: str) -> Iterator[Entry]:
    """Every key below that has a description."""
    for name, row in schema.get("properties", {}).items():
        if "description" in row:
            yield Entry(name, kind, row["description"])
        yield from _described(row, _KINDS.get(name, kind))
    for part in (schema.get("items"), *schema.get("anyOf", ())):
        if isinstance(part, dict):
            yield from _described(part, kind)


def about_cause(cause: str) -> tuple[str, str]:
    """What it means, and what to do first; or nothing where the table is missing: a summary must not fail for it."""
    try:
        rows = json.loads(locate.data_file("causes.json").read_text(encoding="utf-8"))["causes"]
        return next(((row["meaning"], row["what_to_do"][0]) for row in rows if row["cause"] == cause), ("", ""))
    except (locate.NotFound, OSError, ValueError, LookupError):
        return "", ""


def run(word: str | None) -> int:
    try:
        known = entries()
    except (locate.NotFound, OSError, ValueError, KeyError) as error:
        return fail(f"explain: {error}", 1)
    if word is None:
        for kind, title in _TITLES.items():
            put(f"{title}\n  {', '.join(dict.fromkeys(entry.word for entry in known if entry.kind == kind))}\n")
        return 0
    plain = re.sub(r"[^a-z0-9]+", "_", word.strip().lower().removeprefix("cupool_")).strip("_")  # CUPOOL_LIMIT, "driver calls"
    meant = [entry for entry in known if entry.word == plain]
    meant += [entry for entry in known if (entry.word, entry.kind) == (f"{plain}_bytes", "counter")]  # what people read is live, reserved
    if not meant:
        near = difflib.get_close_matches(plain, [entry.word for entry in known], 1, _CLOSE)
        return fail(f"explain: '{word}' is not a word of the report{f'; did you mean {near[0]}?' if near else ''} (cupool explain lists them)", 1)
    put("\n".join(f"{entry.word} ({_name(entry.kind)})\n{entry.text}\n" for entry in meant))
    return 0


def _name(kind: str) -> str:
    return {"oom": "of an out-of-memory", "report": "in the report"}.get(kind, kind)
