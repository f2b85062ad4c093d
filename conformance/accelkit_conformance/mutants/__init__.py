"""Mutants: broken plugins that the suite must detect. Each is a subclass of a working plugin, with one fault added; most are accelerators.

``accelkit conformance selftest`` runs the suite on all of them. The mutants need the distribution ``accelkit-fake-xpu``.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable
from types import ModuleType

from accelkit import PluginRecord, UnavailableError, UsageError
from accelkit_conformance.checks import AREAS

_MODULES = (
    "arithmetic",
    "composed",
    "shapes",
    "argument_values",
    "indexing",
    "attention",
    "many_items",
    "reductions",
    "draws",
    "matrices",
    "operands",
    "scalar_operands",
    "gradients",
    "derivatives",
    "function_transforms",
    "layouts",
    "memory",
    "random",
    "random_states",
    "samplers",
    "host_values",
    "arguments",
    "stream_objects",
    "many_calls",
    "unnoticed",
    "places",
    "copies",
    "kept_values",
    "pinned_memory",
    "ordering",
    "event_times",
    "first_use",
    "mixed_precision",
    "many_tensors",
    "optimizer_steps",
    "distributed",
    "distributed_calls",
    "declarations",
    "crashes",
    "mistakes",
    "frameworks",
    "recordings",
    "precision_conversion",
    "precision_steps",
    "precision_scalers",
    "precision_instances",
    "strategy_reduction",
    "strategy_meshes",
    "cluster_values",
    "cluster_claims",
    "cluster_readers",
    "cluster_jobs",
    "hook_plugins",
    "strategy_training",
    "strategy_engines",
)
MOST_OF_ONE_MECHANISM = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """A broken plugin.

    Attributes:
        name: The name, as in ``--mutants``.
        area: The area whose tests must detect the mutant.
        mechanism: The kind of fault. At most three mutants have the same mechanism.
        value: The location of the mutant's class, written as in an entry point: ``module:Class``.
        description: The fault.
        kind: The kind of the plugin.
        base: The name of the working plugin from which the mutant is derived.
        check: The name of a check in the mutant's area. The tests of this check in the profile ``full`` also run on the mutant. A name is
        needed only in areas whose tests in ``full`` do not all run on mutants, because they would take too long.
    """

    name: str
    area: str
    mechanism: str
    value: str
    description: str
    kind: str = "accelerator"
    base: str = "fake_xpu"
    check: str = ""

    def record(self, base: PluginRecord) -> PluginRecord:
        """Return a record of this mutant: a copy of the working plugin's record ``base``, with the location of the mutant's class."""
        return dataclasses.replace(base, value=self.value)


_LEAKING = Mutant(
    "leaks_at_import",
    "isolation",
    "imports",
    f"{__name__}.leaking:LeaksAtImport",
    "Importing the plugin changes the environment and starts a thread.",
)
"""The only mutant that is defined here, because merely listing the mutants must not import its module."""


def mutant(area: str, mechanism: str, *, kind: str = "accelerator", base: str = "fake_xpu", check: str = "") -> Callable[[type], type]:
    """Class decorator that turns a class into a mutant. The tests of ``area`` must detect this mutant.

    If ``kind`` is ``accelerator``, the class must be a subclass of Broken. Otherwise, it must be a subclass of the working plugin that
    ``base`` names. For the arguments, see ``Mutant``. The docstring of the class becomes the description of the mutant.
    """
    assert area in AREAS

    def mark(cls: type) -> type:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        cls.mutant = Mutant(name, area, mechanism, f"{cls.__module__}:{cls.__name__}", (cls.__doc__ or "").strip(), kind, base, check)  # type: ignore[attr-defined]
        return cls

    return mark


def all_mutants() -> list[Mutant]:
    """Return all mutants, grouped by module, in the order in which each module defines them.

    Raises:
        UnavailableError: If accelkit-fake-xpu is not installed.
    """
    try:
        modules = [importlib.import_module(f"{__name__}.{name}") for name in _MODULES]
    except ModuleNotFoundError as error:
        raise UnavailableError(
            "the mutants are built on the fake XPU, which is not installed", why=str(error), hint="pip install accelkit-fake-xpu"
        ) from error
    found = [value.mutant for module in modules for value in vars(module).values() if _is_defined_in(value, module)]
    return [*found, _LEAKING]


def _is_defined_in(value: object, module: ModuleType) -> bool:
    return isinstance(getattr(value, "mutant", None), Mutant) and getattr(value, "__module__", "") == module.__name__


def find(name: str) -> Mutant:
    """Return the mutant with this name.

    Raises:
        UsageError: If there is no such mutant.
    """
    for one in all_mutants():
        if one.name == name:
            return one
    raise UsageError(f"there is no mutant {name!r}", hint="accelkit conformance selftest --list shows all mutants")
