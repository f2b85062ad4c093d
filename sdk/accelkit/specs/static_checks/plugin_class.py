"""The class of a plugin as the static checks see it: its own members, separate from the members of its specification."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from accelkit.types import Kind

_SPECIFICATIONS = "accelkit.specs."


@dataclasses.dataclass(frozen=True)
class PluginClass:
    """The class of a plugin, and the kind of the plugin.

    Attributes:
        kind: The kind of the plugin.
        cls: The class.
    """

    kind: Kind
    cls: type

    @functools.cached_property
    def specifications(self) -> list[type]:
        """The specifications that the plugin's class inherits from, the most derived first. A hook plugin has none."""
        return [one for one in self.cls.__mro__ if one.__module__.startswith(_SPECIFICATIONS)]

    @functools.cached_property
    def specified(self) -> Mapping[str, Any]:
        """The public members of the specifications, by name. Properties are not evaluated.

        The value of an attribute that is annotated but not assigned is ``inspect.Parameter.empty``.
        """
        found: dict[str, Any] = {}
        for one in reversed(self.specifications):
            found |= dict.fromkeys(inspect.get_annotations(one), inspect.Parameter.empty) | dict(vars(one))
        return {name: value for name, value in found.items() if not name.startswith("_")}

    @functools.cached_property
    def own(self) -> Mapping[str, Any]:
        """The public members that the class and its bases define, by name. Properties are not evaluated.

        Bases that are specifications, or that belong to torch or the standard library, are left out.
        """
        found: dict[str, Any] = {}
        for one in reversed(self.cls.__mro__):
            root = one.__module__.partition(".")[0]
            if one not in self.specifications and root not in sys.stdlib_module_names and root != "torch":
                found |= vars(one)
        return {name: value for name, value in found.items() if not name.startswith("_")}

    @functools.cached_property
    def mentioned(self) -> set[str]:
        """The names of globals and attributes that the methods of the class use. Methods of the specifications are left out."""
        codes = [function.__code__ for one in self.cls.__mro__ for function in _functions(one)]
        found: set[str] = set()
        while codes:
            code = codes.pop()
            found |= set(code.co_names)
            codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
        return found

    def spell(self, name: str) -> str:
        return f"{self.cls.__name__}.{name}"


Rule = Callable[[PluginClass], Iterator[tuple[str, str, str]]]
"""A function that yields ``what``, ``why`` and ``hint`` of each mistake that it finds (see ``Finding``)."""


def function_of(value: Any) -> Any:
    """Return the function inside a classmethod, staticmethod, property or cached_property. Any other value is returned unchanged."""
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, functools.cached_property) else getattr(value, "__func__", value)


def is_property(value: Any) -> bool:
    return isinstance(value, property | functools.cached_property)


def is_method(value: Any) -> bool:
    return isinstance(value, classmethod | staticmethod) or inspect.isfunction(value)


def did_you_mean(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return a hint that suggests the most similar name.

    If no name is similar, the hint consists of the text ``otherwise`` and a list of all names.
    """
    known = list(names)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise}: {', '.join(known) or 'none'}"


def _functions(cls: type) -> Iterator[Any]:
    if not cls.__module__.startswith(_SPECIFICATIONS):
        yield from (function for value in vars(cls).values() if inspect.isfunction(function := function_of(value)))
