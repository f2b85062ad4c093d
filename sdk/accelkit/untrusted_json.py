"""Parsing of untrusted JSON. Invalid input always raises ValueError. Fields are checked against the types that a dataclass declares."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

_T = TypeVar("_T")


def parse(text: str | bytes) -> Any:
    """Parse JSON and return its value.

    Raises:
        ValueError: If the text is not JSON or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def decode(cls: type[_T], fields: object) -> _T:
    """Create an instance of a dataclass from a parsed JSON object.

    Fields that the class does not declare are ignored, and missing fields get their default.

    Raises:
        ValueError: If ``fields`` is not an object, lacks a required field, or has a value that is not of the declared type.
    """
    if not isinstance(fields, dict):
        raise ValueError(f"expected an object, got {type(fields).__name__}")
    declared = _declared(cls)  # type: ignore[arg-type] # a class can be hashed
    given = {name: _value(fields[name], annotation, name) for name, annotation in declared.items() if name in fields}
    try:
        return cls(**given)
    except TypeError as error:
        raise ValueError(str(error)) from error


@functools.cache
def _declared(cls: type) -> dict[str, Any]:
    annotations = typing.get_type_hints(cls)
    return {field.name: annotations[field.name] for field in dataclasses.fields(cls)}


def _value(value: Any, annotation: Any, where: str) -> Any:
    if annotation is Any or (annotation in (str, bool, int) and type(value) is annotation):
        return value
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (annotation,) = [one for one in arguments if one is not type(None)]
        return _value(value, annotation, where)
    if origin is Literal and isinstance(value, str) and value in arguments:
        return value
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return decode(annotation, value)
    if annotation is float and type(value) in (int, float) and _is_finite(value):
        return float(value)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(one, arguments[0], where) for one in value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _value(one, arguments[1], f"{where}.{name}") for name, one in value.items()}
    raise ValueError(f"{where:.80} has the invalid value {value!r:.80}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
