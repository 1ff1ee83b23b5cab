"""`cupool explain WORD`: what a word of the report means.

No text of its own: causes come from causes.json, metrics, ledger parts and counters from the report's schema, options
from the options table, so that an explanation cannot drift from what is written.
"""

from __future__ import annotations

import difflib
import json

from cupool_lib import locate
from cupool_lib.options import INTERNAL, load_options
from cupool_lib.terminal import fail, put


def words() -> dict[str, tuple[str, str]]:
    """word: (kind, text)"""
    schema = json.loads(locate.data_file("report.schema.json").read_text(encoding="utf-8"))
    device = schema["$defs"]["device"]["properties"]
    found: dict[str, tuple[str, str]] = {}
    for option in load_options():
        if option.name not in INTERNAL:
            found[option.name] = ("option", f"{option.doc}. Variable {option.variable}, flag {option.flag}, default {option.default}.")
    for kind, properties in (("ledger", device["ledger"]["properties"]), ("counter", device["counters"]["properties"]),
                             ("metric", schema["$defs"]["figures"]["properties"]), ("pages", schema["$defs"]["tier"]["properties"])):
        for name, row in properties.items():
            if "description" in row:
                found[name] = (kind, row["description"])
    causes = json.loads(locate.data_file("causes.json").read_text(encoding="utf-8"))
    for row in causes["causes"]:
        lines = [row["meaning"], f"Holds when {row['holds_when']}. The shortfall is {row['shortfall']}.", "What to do:"]
        found[row["cause"]] = ("cause", "\n".join(lines + [f"  - {advice}" for advice in row["what_to_do"]]))
    return found


def cause_meaning(cause: str) -> str:
    """One sentence, or nothing where the table is missing: a summary must not fail for it."""
    try:
        rows = json.loads(locate.data_file("causes.json").read_text(encoding="utf-8"))["causes"]
        return next((row["meaning"] for row in rows if row["cause"] == cause), "")
    except (locate.NotFound, OSError, ValueError, KeyError):
        return ""


def run(word: str | None) -> int:
    try:
        known = words()
    except (locate.NotFound, OSError, ValueError, KeyError) as error:
        return fail(f"explain: {error}", 1)
    if word is None:
        for kind, title in (("cause", "Causes of an out-of-memory, in the order in which they are tried"), ("metric", "Fragmentation"),
                            ("ledger", "Parts of the ledger"), ("pages", "Physical handles, by size (devices[].pages.tiers)"), ("counter", "Counters"), ("option", "Options")):
            put(f"{title}\n  {', '.join(name for name, (its_kind, _) in known.items() if its_kind == kind)}\n")
        return 0
    if word not in known:
        near = difflib.get_close_matches(word, known, 1, 0.5)
        return fail(f"explain: '{word}' is not a word of the report{f'; did you mean {near[0]}?' if near else ''} (cupool explain lists them)", 1)
    kind, text = known[word]
    put(f"{word} ({kind})\n{text}\n")
    return 0
