"""JSON that somebody else may have written: every defect is a ValueError, and fields have the types that a class declares."""

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
    """The value.

    Raises:
        ValueError: If it is no JSON, or is nested too deep to be read.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def decode(cls: type[_T], fields: object) -> _T:
    """An instance of a dataclass from a parsed JSON object. What the class does not know is left out, what is absent has its default.

    Raises:
        ValueError: If it is no object, lacks a field, or a field's value is not of the declared type.
    """
    if not isinstance(fields, dict):
        raise ValueError(f"{type(fields).__name__} is there where an object is expected")
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
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
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
    if annotation in (str, bool, int) and type(value) is annotation:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(one, arguments[0], where) for one in value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _value(one, arguments[1], f"{where}.{name}") for name, one in value.items()}
    raise ValueError(f"{where:.80} is {value!r:.80}, which is not what it may be")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
