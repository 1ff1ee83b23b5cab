"""The hand-over: frameworks' memory settings become CUPOOL_* variables, then the frameworks' own pools stand aside.

plan() says what would change in an environment and why, and changes nothing itself. What the user set as a flag, a
CUPOOL_* variable or in a profile wins. A setting that loses is named in one line, so that nobody has to guess. What is known
of the frameworks stands in handover_rules.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from cupool_lib.handover_rules import POOLS, PYTORCH_NATIVE_KEYS, RULES, Pool, Rule, Setting

_SMALLEST_FRACTION = Decimal("0.000001")
_MOST_BYTES = 1 << 62
# Under these the library changes nothing, so the frameworks' pools must not change either.
_UNTOUCHED = {"off": "the library does nothing", "platform": "every call stays native"}


@dataclass(frozen=True)
class Explicit:
    """An option that the user chose: the value, and where, in words ("--limit 1GiB")."""

    value: str
    source: str


@dataclass(frozen=True)
class Change:
    """`value` None: the variable is taken out."""

    variable: str
    value: str | None
    why: str


@dataclass
class Plan:
    changes: list[Change] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)  # one line each, for stderr
    notes: list[str] = field(default_factory=list)      # what was left as it is, and why

    def apply(self, environment: dict[str, str]) -> dict[str, str]:
        result = dict(environment)
        for change in self.changes:
            result.pop(change.variable, None)
            if change.value is not None:
                result[change.variable] = change.value
        return result


@dataclass(frozen=True)
class _Reading:
    """A rule that fits, with its effects filled in."""

    rule: Rule
    text: str
    effects: dict[str, str]


def plan(environment: dict[str, str], explicit: dict[str, Explicit], keep: frozenset[str] = frozenset()) -> Plan:
    """`environment`: the user's. `explicit`: by option name. `keep`: frameworks whose pool and settings are left alone."""
    policy = explicit["policy"].value.strip().lower() if "policy" in explicit else ""
    if policy in _UNTOUCHED:
        return Plan(notes=[f"policy {policy}: {_UNTOUCHED[policy]}, so the frameworks keep their pools and their settings"])
    if environment.get("CUPOOL_RUN_ID"):
        return Plan(notes=["inside another `cupool run`: what that one decided stays"])
    result = Plan(notes=[f"--keep-framework-pool: {name} keeps its pool and its settings" for name in sorted(keep)])
    readings, kept = _read(environment, keep, result)
    chosen = _Translation(readings, explicit, policy, result).run()
    if chosen == "platform":
        result.notes.append(f"policy platform: {_UNTOUCHED['platform']}, so the frameworks keep their pools")
    else:
        for pool in POOLS:
            if pool.framework not in kept:
                _stand_aside(pool, environment, result)
    for change in result.changes:  # only a value that the library does not take is replaced
        if change.variable.startswith("CUPOOL_") and environment.get(change.variable, "").strip():
            result.conflicts.append(f"{change.variable}={environment[change.variable]} is no value for it: {change.value} is used ({change.why})")
    return result


def _read(environment: dict[str, str], keep: frozenset[str], result: Plan) -> tuple[list[_Reading], set[str]]:
    """What fits, in the order of the table, without the frameworks that keep their pool; and those."""
    readings, done = [], set()
    for rule in RULES:
        text = environment.get(rule.variable, "")
        known = rule.variable in done or rule.framework in keep
        effects = _fit(rule, text) if text.strip() and not known else None
        if effects is not None:
            done.add(rule.variable)
            readings.append(_Reading(rule, f"{rule.variable}={text}", effects))
    for variable in dict.fromkeys(rule.variable for rule in RULES if rule.framework not in keep):
        if environment.get(variable, "").strip() and variable not in done:
            result.notes.append(f"{variable}={environment[variable]} says nothing that cupool could take over")
    kept = set(keep)
    for reading in readings:
        if "keep" in reading.effects:
            kept.add(reading.rule.framework)
            result.conflicts.append(f"{reading.text}: {reading.effects['keep']}; {reading.rule.framework} keeps its own pool and settings")
    return [reading for reading in readings if reading.rule.framework not in kept], kept


def _fit(rule: Rule, text: str) -> dict[str, str] | None:
    match = re.fullmatch(rule.pattern, text, re.ASCII | re.DOTALL)
    if not match:
        return None
    values = {name: _CONVERTERS[name](value) for name, value in match.groupdict().items()}
    if any(value is None for value in values.values()):
        return None
    return {name: template.format(**values) if values else template for name, template in rule.effects.items()}


def _percent(text: str) -> str | None:
    try:
        fraction = Decimal(text)
    except InvalidOperation:
        return None
    if not _SMALLEST_FRACTION <= fraction <= 1:
        return None
    return f"{(fraction * 100).quantize(Decimal('0.0000000001')).normalize():f}%"


def _bytes(text: str) -> str:
    return str(min(int(text), _MOST_BYTES)) if len(text) < 30 else str(_MOST_BYTES)


def _canonical(amount: str) -> str:
    """0.5, .5 and 50% are the same."""
    text = amount.strip().lower()
    number, percent = text.rstrip("%").strip(), text.endswith("%")
    if not percent and "." not in number:
        return text
    return _percent(str(Decimal(number) / 100) if percent else number) or text if re.fullmatch(r"\d*\.?\d+|\d+\.", number, re.ASCII) else text


_CONVERTERS = {"fraction": _percent, "bytes": _bytes}


class _Translation:
    """From readings to CUPOOL_POLICY, CUPOOL_PREALLOCATE and CUPOOL_LIMIT."""

    def __init__(self, readings: list[_Reading], explicit: dict[str, Explicit], policy: str, result: Plan):
        self.readings, self.explicit, self.explicit_policy, self.result = readings, explicit, policy, result
        self.lost: set[str] = set()

    def run(self) -> str:
        """The policy that comes out, "" where nobody chose one."""
        stated, wants = self._choose("policy"), self._choose("preallocation")
        share, amount, ceiling = self._choose("share"), self._choose("amount"), self._choose("ceiling")
        policy = self._policy(stated, wants, share or ceiling)
        at_start, source = self._at_start(policy, wants, share, amount, ceiling)
        if at_start and source:
            self._set("preallocate", at_start, source)
        elif wants and wants.effects["preallocation"] == "no" and self._explicit_start():
            self._lose(wants, self.explicit["preallocate"].source)
        limit = self._choose("limit")
        if limit:
            self._set("limit", limit.effects["limit"], limit)
        return policy

    def _explicit_start(self) -> bool:
        return "preallocate" in self.explicit and self.explicit["preallocate"].value.strip().lower() not in ("none", "0")

    def _choose(self, effect: str) -> _Reading | None:
        """The first that has the effect; a later one that says something else loses."""
        found = [reading for reading in self.readings if effect in reading.effects]
        for reading in found[1:]:
            if reading.effects[effect] != found[0].effects[effect]:
                self._lose(reading, found[0].text)
        return found[0] if found else None

    def _policy(self, stated: _Reading | None, wants: _Reading | None, implies: _Reading | None) -> str:
        no = wants is not None and wants.effects["preallocation"] == "no"
        if self.explicit_policy:
            # JAX's platform allocator on top of the pool is a route of its own (ROUTES).
            is_route = stated is not None and (stated.effects["policy"], self.explicit_policy) == ("platform", "grow")
            if stated and stated.effects["policy"] != self.explicit_policy and not is_route:
                self._lose(stated, self.explicit["policy"].source)
            if wants and (self.explicit_policy == "preallocate" if no else self.explicit_policy == "grow"):
                self._lose(wants, self.explicit["policy"].source)
            return self.explicit_policy
        if stated:
            if wants and not no and stated.effects["policy"] == "platform":
                self._lose(wants, stated.text)
            self._set("policy", stated.effects["policy"], stated)
            return stated.effects["policy"]
        source = wants or implies
        if not source:
            return ""
        self._set("policy", "grow" if no else "preallocate", source)
        return "grow" if no else "preallocate"

    @staticmethod
    def _at_start(policy: str, wants: _Reading | None, share: _Reading | None, amount: _Reading | None,
                  ceiling: _Reading | None) -> tuple[str, _Reading | None]:
        """What is taken at the start beyond what the policy implies, and who says so."""
        choice = wants.effects["preallocation"] if wants else ""
        if policy == "platform":
            return "", None
        if policy != "grow" and (policy == "preallocate" or choice != "no"):
            part = share.effects["share"] if share else "75%"
            if ceiling:
                return f"min({part},{ceiling.effects['ceiling']})", ceiling
            if share:
                return part, share
        if amount:
            return amount.effects["amount"], amount
        return ("-1", wants) if policy == "async" and choice == "yes" else ("", None)

    def _set(self, option: str, value: str, source: _Reading) -> None:
        mine = self.explicit.get(option)
        if mine is None:
            self.result.changes.append(Change(f"CUPOOL_{option.upper()}", value, f"{source.rule.framework}: {source.text}"))
        elif _canonical(mine.value) != _canonical(value):
            self._lose(source, mine.source)

    def _lose(self, reading: _Reading, winner: str) -> None:
        if reading.rule.variable not in self.lost:
            self.lost.add(reading.rule.variable)
            self.result.conflicts.append(f"{reading.text} conflicts with {winner}, which wins")


def _stand_aside(pool: Pool, environment: dict[str, str], result: Plan) -> None:
    aside = environment.get(pool.aside_variable, "")
    if aside and re.fullmatch(pool.aside_pattern, aside, re.DOTALL):
        result.notes.append(f"{pool.framework}: {pool.aside_variable}={aside} has switched its pool off already")
        return
    done: set[str] = set()
    for setting in pool.settings:
        if setting.variable in done or (setting.only_if and not environment.get(setting.only_if)):
            continue
        done.add(setting.variable)
        _apply_setting(pool, setting, environment, result)


def _apply_setting(pool: Pool, setting: Setting, environment: dict[str, str], result: Plan) -> None:
    current = environment.get(setting.variable, "")
    if current and setting.unless and re.fullmatch(setting.unless, current):
        result.notes.append(f"{pool.framework}: {setting.variable}={current} stays")
        return
    value = setting.value
    if setting.merge_from:
        source = setting.variable if current else setting.merge_from
        value, dropped = merge_pytorch(setting.value or "", environment.get(source, ""))
        if dropped:
            _name_once(result, source, f"{source}: {', '.join(dropped)} left out, {pool.framework}'s own pool stands aside (--keep-framework-pool keeps both)")
    elif current and setting.named and re.fullmatch(setting.named, current, re.DOTALL):
        result.conflicts.append(f"{setting.variable}={current} becomes {value}: {pool.framework}'s own pool stands aside (--keep-framework-pool keeps it)")
    if value != environment.get(setting.variable):
        result.changes.append(Change(setting.variable, value, f"{pool.framework}: {setting.why}"))


def _name_once(result: Plan, source: str, line: str) -> None:
    if not any(known.startswith(f"{source}: ") for known in result.conflicts):
        result.conflicts.append(line)


def merge_pytorch(ours: str, theirs: str) -> tuple[str, list[str]]:
    """PyTorch's settings with our backend and without what only its own pool understands; and what was left out, if it asked for anything."""
    kept, dropped = [ours], []
    for entry in _entries(theirs):
        key, _, value = entry.partition(":")
        if key == "backend":
            if entry != ours:
                dropped.append(entry)
        elif key not in PYTORCH_NATIVE_KEYS:
            kept.append(entry)
        elif value != "False":
            dropped.append(key)
    return ",".join(kept), list(dict.fromkeys(dropped))


def _entries(text: str) -> list[str]:
    """KEY:VALUE pairs; a comma inside brackets belongs to a value. PyTorch takes no notice of white space."""
    entries, depth, current = [], 0, ""
    for character in "".join(text.split()) + ",":
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            entries.append(current)
            current, depth = "", 0
        else:
            current += character
    return [entry for entry in entries + [current.rstrip(",")] if entry]
