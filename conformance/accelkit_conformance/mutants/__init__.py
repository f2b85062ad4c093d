"""Broken accelerators: what the suite must find. Each is a real plugin's class, made of the fake XPU's, with one fault.

``accelkit conformance selftest`` runs the suite on every one of them. Needs ``accelkit-fake-xpu``.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable
from types import ModuleType

from accelkit import PluginRecord, UnsupportedError, UsageError
from accelkit_conformance.checks import AREAS

_MODULES = (
    "arithmetic",
    "gradients",
    "layouts",
    "memory",
    "random",
    "copies",
    "ordering",
    "mixed_precision",
    "distributed",
    "declarations",
    "crashes",
    "mistakes",
    "frameworks",
)
MOST_OF_ONE_MECHANISM = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """A broken accelerator.

    Attributes:
        name: As in ``--mutant``.
        area: Whose tests must find it.
        mechanism: How it is broken; at most three mutants share one.
        value: Its class, as an entry point names it.
        description: What is wrong with it.
    """

    name: str
    area: str
    mechanism: str
    value: str
    description: str

    def record(self, base: PluginRecord) -> PluginRecord:
        """The record of a plugin that offers it."""
        return dataclasses.replace(base, value=self.value)


_LEAKING = Mutant(
    "leaks_at_import",
    "isolation",
    "imports",
    f"{__name__}.leaking:LeaksAtImport",
    "Importing it changes the environment, and leaves a thread running.",
)
"""Said here, for its module must not be imported by whoever only wants to know of it."""


def mutant(area: str, mechanism: str) -> Callable[[type], type]:
    """Make a subclass of Broken a mutant that tests of ``area`` must find."""
    assert area in AREAS

    def mark(cls: type) -> type:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        cls.mutant = Mutant(name, area, mechanism, f"{cls.__module__}:{cls.__name__}", (cls.__doc__ or "").strip())  # type: ignore[attr-defined]
        return cls

    return mark


def all_mutants() -> list[Mutant]:
    """Every mutant, in the order of the modules.

    Raises:
        UnsupportedError: If accelkit-fake-xpu is not installed.
    """
    try:
        modules = [importlib.import_module(f"{__name__}.{name}") for name in _MODULES]
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "the broken accelerators are made of the fake XPU", why=str(error), hint="pip install accelkit-fake-xpu"
        ) from error
    found = [value.mutant for module in modules for value in vars(module).values() if _is_defined_in(value, module)]
    return [*found, _LEAKING]


def _is_defined_in(value: object, module: ModuleType) -> bool:
    return isinstance(getattr(value, "mutant", None), Mutant) and getattr(value, "__module__", "") == module.__name__


def find(name: str) -> Mutant:
    """The mutant of this name.

    Raises:
        UsageError: If there is none.
    """
    for one in all_mutants():
        if one.name == name:
            return one
    raise UsageError(f"there is no mutant {name!r}", hint="accelkit conformance selftest --list shows them")
