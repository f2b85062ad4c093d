"""Traversal of nested data, such as batches, arguments and results."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from accelkit.errors import UsageError

T = TypeVar("T")
_DEEPEST = 100
_MAPPINGS = (dict, Mapping)  # isinstance takes three times as long with ``dict | Mapping``, which is a new object each time
_SEQUENCES = (tuple, list)


def tree_map(function: Callable[[Any], Any], data: T, is_leaf: Callable[[Any], bool] | None = None) -> T:
    """Apply ``function`` to every leaf of ``data``, and return the results in containers of the same types.

    Containers are dicts and other mappings, lists, tuples, named tuples and dataclass instances. Anything else is a leaf. A container is
    returned unchanged if none of its leaves changed, so a traversal that changes nothing copies nothing.

    Args:
        function: A function that takes a leaf and returns its replacement, or the leaf itself.
        data: The data, nested in any way.
        is_leaf: A function that returns True for containers to treat as leaves.

    Raises:
        UsageError: If containers are nested more than 100 levels deep, for example because a container contains itself.
    """
    result: T = _mapped(function, data, is_leaf, _DEEPEST)
    return result


def _mapped(function: Callable[[Any], Any], data: Any, is_leaf: Callable[[Any], bool] | None, levels: int) -> Any:
    rebuilt: Any = data
    if levels < 0:
        raise UsageError(
            f"the data is nested more than {_DEEPEST} levels deep",
            why=f"the innermost container is a {type(data).__name__}; a container may contain itself",
            hint="pass lists, tuples, dicts and dataclasses that do not contain themselves",
        )
    if is_leaf is not None and is_leaf(data):
        rebuilt = function(data)
    elif isinstance(data, _MAPPINGS):
        items = {key: _mapped(function, value, is_leaf, levels - 1) for key, value in data.items()}
        if any(items[key] is not value for key, value in data.items()):
            rebuilt = _rebuild_mapping(data, items)
    elif isinstance(data, _SEQUENCES):
        values = [_mapped(function, value, is_leaf, levels - 1) for value in data]
        if any(new is not old for new, old in zip(values, data, strict=True)):
            rebuilt = _rebuild_sequence(data, values)
    elif dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
        mapped = {name: _mapped(function, value, is_leaf, levels - 1) for name, value in fields.items()}
        if any(mapped[name] is not value for name, value in fields.items()):
            rebuilt = copy.copy(data)
            for name, value in mapped.items():
                object.__setattr__(rebuilt, name, value)  # also works for frozen dataclasses
    else:
        rebuilt = function(data)
    return rebuilt


def tree_leaves(data: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return the leaves of ``data`` in the order in which ``tree_map`` visits them. ``data``, ``is_leaf`` and the errors are those of
    ``tree_map``."""
    found: list[Any] = []

    def collect(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    tree_map(collect, data, is_leaf)
    return found


def _rebuild_mapping(data: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(data) is dict:
        return items
    rebuilt: Any = copy.copy(data)  # keeps a defaultdict's factory and a BatchEncoding's attributes
    if hasattr(rebuilt, "__setitem__"):
        for key, value in items.items():
            rebuilt[key] = value
        return rebuilt  # type: ignore[no-any-return]
    return type(data)(items)  # type: ignore[call-arg]


def _rebuild_sequence(data: Sequence[Any], values: list[Any]) -> Sequence[Any]:
    if hasattr(data, "_fields"):
        return type(data)(*values)
    return type(data)(values)  # type: ignore[call-arg]
