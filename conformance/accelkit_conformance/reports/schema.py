"""Validate a report against ``schema.json``. Only the keywords that this schema uses are supported."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accelkit import UsageError
from accelkit_conformance.report import Report

FILE = Path(__file__).with_name("schema.json")
_SHOWN = 5
_LARGEST: Mapping[str, float] = {"integer": 2**53, "number": 1e18}  # JSON parsers disagree on larger integers
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def problems(report: object) -> list[str]:
    """Return at most five violations of the schema in a report, one line each; an empty list if the report follows the schema."""
    schema = _schema()
    found = []
    for problem in _check(report, schema, schema["$defs"], "report"):
        found.append(problem)
        if len(found) == _SHOWN:
            break
    return found


def checked(report: Report, origin: Path) -> Report:
    """Return ``report`` if it follows the schema.

    Raises:
        UsageError: If it does not follow the schema. The message names ``origin``, the file from which the report was read.
    """
    if found := problems(report):
        raise UsageError(
            f"{origin} is not a valid conformance report",
            why="; ".join(found),
            hint="accelkit conformance run NAME --json PATH writes a report",
        )
    return report


@functools.cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return schema


def _check(value: Any, schema: Mapping[str, Any], defs: Mapping[str, Any], where: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = defs[schema["$ref"].removeprefix("#/$defs/")]
    if "const" in schema and value != schema["const"]:
        yield f"{where} is {_short(value)}, not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} is {_short(value)}, not one of {', '.join(schema['enum'])}"
    kind = schema.get("type")
    if kind is None:
        return
    is_typed = isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not is_typed:
        yield f"{where} is {_short(value)}, not of type {kind}"
    elif kind == "object":
        yield from _check_object(value, schema, defs, where)
    elif kind == "array":
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{where} has {len(value):,} items; at most {schema['maxItems']:,} are allowed"
            return
        for index, item in enumerate(value):
            yield from _check(item, schema["items"], defs, f"{where}[{index}]")
    elif kind in _LARGEST and not abs(value) <= _LARGEST[kind]:
        yield f"{where} is {_short(value)}; at most {_LARGEST[kind]:g} is allowed"
    elif "minimum" in schema and not value >= schema["minimum"]:
        yield f"{where} is {_short(value)}, less than {schema['minimum']}"
    elif "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where} is {_short(value)}, which does not match {schema['pattern']}"


def _check_object(value: dict[str, Any], schema: Mapping[str, Any], defs: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from (f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value)
    known = schema.get("properties", {})
    for name, item in value.items():
        if "propertyNames" in schema:
            yield from _check(name, schema["propertyNames"], defs, f"a name in {where}")
        inner = known.get(name, schema.get("additionalProperties"))
        if inner is not None:
            yield from _check(item, inner, defs, f"{where}.{name if name in known else _short(name)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
