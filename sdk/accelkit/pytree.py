"""The one walk over nested data: batches, arguments, results."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from accelkit.errors import UsageError

T = TypeVar("T")
_DEEPEST = 100


def map_leaves(function: Callable[[Any], Any], data: T, is_leaf: Callable[[Any], bool] | None = None) -> T:
    """``data`` with ``function`` applied to every leaf, containers of the same types rebuilt around the results.

    Containers are dicts and other mappings, lists, tuples, named tuples and dataclass instances; anything else is a leaf.
    A container none of whose leaves changed is returned as it is, so that a walk that changes nothing copies nothing.

    Args:
        function: Takes a leaf, returns its replacement (or the leaf itself).
        data: Any nesting.
        is_leaf: Containers for which this is true are not entered.

    Raises:
        UsageError: If containers are nested more than 100 deep, as those that hold themselves are.
    """
    result: T = _mapped(function, data, is_leaf, _DEEPEST)
    return result


def _mapped(function: Callable[[Any], Any], data: Any, is_leaf: Callable[[Any], bool] | None, levels: int) -> Any:
    rebuilt: Any = data
    if levels < 0:
        raise UsageError(
            f"data is nested more than {_DEEPEST} deep",
            why=f"a {type(data).__name__} is there, inside containers that may hold themselves",
            hint="pass lists, tuples, dicts and dataclasses that end in tensors or other values",
        )
    if is_leaf is not None and is_leaf(data):
        rebuilt = function(data)
    elif isinstance(data, dict | Mapping):
        items = {key: _mapped(function, value, is_leaf, levels - 1) for key, value in data.items()}
        if any(items[key] is not value for key, value in data.items()):
            rebuilt = _rebuild_mapping(data, items)
    elif isinstance(data, tuple | list):
        values = [_mapped(function, value, is_leaf, levels - 1) for value in data]
        if any(new is not old for new, old in zip(values, data, strict=True)):
            rebuilt = _rebuild_sequence(data, values)
    elif dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
        mapped = {name: _mapped(function, value, is_leaf, levels - 1) for name, value in fields.items()}
        if any(mapped[name] is not value for name, value in fields.items()):
            rebuilt = copy.copy(data)
            for name, value in mapped.items():
                object.__setattr__(rebuilt, name, value)  # frozen ones too
    else:
        rebuilt = function(data)
    return rebuilt


def leaves(data: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Every leaf, in order; as ``map_leaves`` meets them."""
    found: list[Any] = []

    def collect(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_leaves(collect, data, is_leaf)
    return found


def _rebuild_mapping(data: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(data) is dict:
        return items
    rebuilt: Any = copy.copy(data)  # keeps a defaultdict's factory, a BatchEncoding's own attributes
    if hasattr(rebuilt, "__setitem__"):
        for key, value in items.items():
            rebuilt[key] = value
        return rebuilt  # type: ignore[no-any-return]
    return type(data)(items)  # type: ignore[call-arg]


def _rebuild_sequence(data: Sequence[Any], values: list[Any]) -> Sequence[Any]:
    if hasattr(data, "_fields"):
        return type(data)(*values)
    return type(data)(values)  # type: ignore[call-arg]
