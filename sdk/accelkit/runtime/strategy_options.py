"""The options of a strategy as text. The processes of a job compare these texts after they have joined the process group."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

from accelkit.specs.strategy import Strategy

PER_PROCESS = "per_process"  # the key in the metadata of a field whose values may differ between processes
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def option_texts(strategy: Strategy) -> dict[str, str]:
    """Return a dict that maps the name of each option of a strategy, such as ``ParallelOptions.tensor``, to its value as text.

    The options are the fields of the dataclasses in the strategy's attribute ``options`` and in its attributes whose names end in
    ``_options``. A field with the metadata ``{"per_process": True}`` is left out. If a value is a mapping, each entry is also returned
    under a name of its own, such as ``ParallelOptions.plan['head']``.
    """
    held = [value for name, value in vars(strategy).items() if name == "options" or name.endswith("_options")]
    return {name: text for options in held if _is_options(options) for name, text in _fields(options)}


def _is_options(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(options: Any) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(options):
        name, value = f"{type(options).__name__}.{field.name}", getattr(options, field.name)
        if field.metadata.get(PER_PROCESS):
            continue
        if _is_options(value):
            yield from _fields(value)
        elif isinstance(value, Mapping):
            yield name, f"a {type(value).__name__} of {len(value)}"
            yield from ((f"{name}[{key!r}]", _text(entry)) for key, entry in value.items())
        else:
            yield name, _text(value)


def _text(value: Any) -> str:
    """Return a value as text. Classes and functions are written as their names, and the addresses of objects are left out."""
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return _ADDRESS.sub("", repr(value))
