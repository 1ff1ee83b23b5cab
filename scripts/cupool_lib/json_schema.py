"""A validator for the part of JSON Schema 2020-12 that config/report.schema.json uses.

Built in, so that every machine gives the same answer with nothing installed; a test compares it with python's
jsonschema where that is there. A keyword that it does not know is an error, never silently a pass.
"""

from __future__ import annotations

import json
import re
from operator import itemgetter
from typing import Any, Iterator

from cupool_lib.report_file import kind_of

_ANNOTATIONS = frozenset({"$schema", "$id", "$defs", "$comment", "title", "description", "default", "examples", "definitions"})


class BadSchema(Exception):
    """The schema itself cannot be used."""


def problems(value: object, schema: dict) -> Iterator[str]:
    """Each way in which `value` breaks `schema`, as '/json/path: sentence'."""
    for place, sentence in _check(value, schema, "", schema):
        yield f"{place or '/'}: {sentence}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_type(value: object, name: str) -> bool:
    kind = kind_of(value)
    return kind == name or (name == "number" and kind == "integer") or (
        name == "integer" and isinstance(value, float) and value.is_integer())


def _resolve(reference: str, root: dict) -> dict:
    if not reference.startswith("#/"):
        raise BadSchema(f"$ref {reference}: only references into the same file are supported")
    node: Any = root
    for part in reference[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or part not in node:
            raise BadSchema(f"$ref {reference}: there is no such definition")
        node = node[part]
    return node


def _check(value, schema, place, root):
    if schema is True or schema == {}:
        return
    if schema is False:
        yield place, "nothing is allowed here"
        return
    for keyword, argument in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        rule = _RULES.get(keyword)
        if rule is None:
            raise BadSchema(f"keyword '{keyword}' is not known to this validator")
        yield from rule(value, argument, place, root, schema)


def _rule_type(value, names, place, _root, _schema):
    names = [names] if isinstance(names, str) else names
    if not any(_is_type(value, name) for name in names):
        yield place, f"expected {' or '.join(names)}, found {kind_of(value)}"


def _rule_enum(value, allowed, place, _root, _schema):
    if not any(value == option and kind_of(value) == kind_of(option) for option in allowed):
        yield place, f"{_short(value)} is none of {_short(allowed)}"


def _rule_const(value, wanted, place, _root, _schema):
    if value != wanted or kind_of(value) != kind_of(wanted):
        yield place, f"expected {_short(wanted)}, found {_short(value)}"


def _rule_ref(value, reference, place, root, _schema):
    yield from _check(value, _resolve(reference, root), place, root)


def _rule_required(value, keys, place, _root, _schema):
    if isinstance(value, dict):
        for key in keys:
            if key not in value:
                yield place, f"'{key}' is missing"


def _rule_properties(value, properties, place, root, _schema):
    if isinstance(value, dict):
        for key, sub_schema in properties.items():
            if key in value:
                yield from _check(value[key], sub_schema, f"{place}/{key}", root)


def _rule_pattern_properties(value, patterns, place, root, _schema):
    if isinstance(value, dict):
        for key, item in value.items():
            for pattern, sub_schema in patterns.items():
                if re.search(pattern, key):
                    yield from _check(item, sub_schema, f"{place}/{key}", root)


def _rule_additional(value, sub_schema, place, root, schema):
    if not isinstance(value, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, item in value.items():
        if key in known or any(re.search(pattern, key) for pattern in patterns):
            continue
        if sub_schema is False:
            yield place, f"'{key[:60]}' is not expected here"
        else:
            yield from _check(item, sub_schema, f"{place}/{key}", root)


def _rule_property_names(value, sub_schema, place, root, _schema):
    if isinstance(value, dict):
        for key in value:
            yield from _check(key, sub_schema, place, root)


def _rule_items(value, sub_schema, place, root, schema):
    if isinstance(value, list) and not _rows_fit(value, sub_schema, root):
        first = len(schema.get("prefixItems", ()))
        for index, item in enumerate(value[first:], first):
            yield from _check(item, sub_schema, f"{place}/{index}", root)


def _rows_fit(rows: list, schema, root) -> bool:
    """Whether every row of a table fits, looked at column by column: a report has a million rows. False is no answer yet."""
    if not isinstance(schema, dict) or not {"type", "prefixItems", "minItems", "maxItems"} == set(schema) - _ANNOTATIONS:
        return False
    columns, width = schema["prefixItems"], len(schema["prefixItems"])
    if not schema["type"] == "array" or not schema["minItems"] == schema["maxItems"] == width:
        return False
    if not set(map(type, rows)) <= {list} or not set(map(len, rows)) <= {width}:
        return False
    return all(_column_fits(list(map(itemgetter(index), rows)), column, root) for index, column in enumerate(columns))


def _column_fits(values: list, schema: dict, root) -> bool:
    if set(schema) == {"$ref"}:
        schema = _resolve(schema["$ref"], root)
    keywords = set(schema) - _ANNOTATIONS
    if keywords == {"type", "minimum", "maximum"} and schema["type"] == "integer":
        return set(map(type, values)) <= {int} and (not values or schema["minimum"] <= min(values) <= max(values) <= schema["maximum"])
    return keywords == {"enum"} and set(map(type, values)) <= {str} and set(values) <= set(schema["enum"])


def _rule_prefix_items(value, sub_schemas, place, root, _schema):
    if isinstance(value, list):
        for index, (item, sub_schema) in enumerate(zip(value, sub_schemas)):
            yield from _check(item, sub_schema, f"{place}/{index}", root)


def _fits(value, schema, place, root) -> bool:
    return next(_check(value, schema, place, root), None) is None


def _rule_any_of(value, schemas, place, root, _schema):
    if not any(_fits(value, option, place, root) for option in schemas):
        yield place, f"{_short(value)} matches none of the allowed forms"


def _rule_one_of(value, schemas, place, root, _schema):
    matches = sum(_fits(value, option, place, root) for option in schemas)
    if matches != 1:
        yield place, f"{_short(value)} matches {matches} of the allowed forms instead of one"


def _rule_all_of(value, schemas, place, root, _schema):
    for option in schemas:
        yield from _check(value, option, place, root)


def _bound(applies, broken, text):
    def rule(value, limit, place, _root, _schema):
        if applies(value) and broken(value, limit):
            yield place, text.format(value=_short(value), limit=limit)
    return rule


def _is_number(value) -> bool:
    return kind_of(value) in ("integer", "number")


_RULES = {
    "type": _rule_type, "enum": _rule_enum, "const": _rule_const, "$ref": _rule_ref, "required": _rule_required,
    "properties": _rule_properties, "patternProperties": _rule_pattern_properties, "additionalProperties": _rule_additional,
    "propertyNames": _rule_property_names, "items": _rule_items, "prefixItems": _rule_prefix_items, "anyOf": _rule_any_of,
    "oneOf": _rule_one_of, "allOf": _rule_all_of,
    "minimum": _bound(_is_number, lambda v, n: v < n, "{value} is less than {limit}"),
    "maximum": _bound(_is_number, lambda v, n: v > n, "{value} is more than {limit}"),
    "exclusiveMinimum": _bound(_is_number, lambda v, n: v <= n, "{value} is not more than {limit}"),
    "exclusiveMaximum": _bound(_is_number, lambda v, n: v >= n, "{value} is not less than {limit}"),
    "minItems": _bound(lambda v: isinstance(v, list), lambda v, n: len(v) < n, "fewer than {limit} items"),
    "maxItems": _bound(lambda v: isinstance(v, list), lambda v, n: len(v) > n, "more than {limit} items"),
    "minLength": _bound(lambda v: isinstance(v, str), lambda v, n: len(v) < n, "{value} is shorter than {limit}"),
    "maxLength": _bound(lambda v: isinstance(v, str), lambda v, n: len(v) > n, "{value} is longer than {limit}"),
    "pattern": _bound(lambda v: isinstance(v, str), lambda v, p: not re.search(p, v), "{value} does not match {limit}"),
    "minProperties": _bound(lambda v: isinstance(v, dict), lambda v, n: len(v) < n, "fewer than {limit} keys"),
}
