"""What the suite is made of: checks, found in the modules of ``areas``. This module imports no torch.

A check is a function of the subject, and of parameters where it has any. It passes by returning; an AssertionError says what is wrong::

    @check("smoke", requires=["memory_statistics"])
    def peak_resets(subject):
        \"\"\"After reset_peak_memory_stats the peak is what is allocated now.\"\"\"

Its id is ``area/name`` or ``area/name[parameter,...]``: ``memory/peak_resets``, ``operators/forward[add,float32]``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

from accelkit import UsageError

Profile = Literal["contract", "smoke", "training", "distributed", "full"]
"""Cumulative: each holds those before it."""
PROFILES: tuple[Profile, ...] = get_args(Profile)

AREAS = (
    "contract", "isolation", "device", "capabilities", "memory", "streams", "random", "transfer", "layout", "serialization", "operators",
    "autograd", "modules", "optimizers", "precision", "training", "checkpoint", "determinism", "dataloader", "errors", "compile",
    "collectives", "ddp", "fsdp", "bridges",
)  # fmt: skip
"""In the order of reports. The module ``areas/<area>.py`` holds an area's checks; its docstring says what it asserts."""

SUBJECT_KINDS = ("accelerator", "precision", "cluster", "strategy")

SIZES = ("2", "3")
"""How many processes run a distributed check together."""

Case = tuple[Profile, tuple[str, ...]]
"""The first profile in which a case of a check stands, and its parameters."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One assertion about a subject.

    Attributes:
        area, name, function: Where it stands, and what runs.
        profile: The first profile that holds it; a case may have its own.
        requires: Capabilities without which there is nothing to assert. ``{0}`` stands for the first parameter.
        probes: The capability that it decides, if any: it runs although ``none`` is declared, and passing is then over-claimed unsupported.
        cases: What its parameters are; None for a check without.
        needs_hardware: Whether the subject is loaded first.
        is_distributed: Its first parameter is the number of processes that run it together.
        seconds: Its time limit.
        kind: Of subjects that it is about.
    """

    area: str
    name: str
    function: Callable[..., None]
    profile: Profile
    requires: tuple[str, ...] = ()
    probes: str = ""
    cases: Callable[[], Iterable[Case]] | None = None
    needs_hardware: bool = True
    is_distributed: bool = False
    seconds: float = 60.0
    kind: str = "accelerator"

    def ids(self) -> list[tuple[Profile, str]]:
        """The id of every case, and the first profile that holds it. May import torch."""
        if self.cases is None:
            return [(self.profile, f"{self.area}/{self.name}")]
        return [(profile, f"{self.area}/{self.name}[{','.join(parameters)}]") for profile, parameters in self.cases()]

    @property
    def description(self) -> str:
        return inspect.getdoc(self.function) or ""


def check(
    profile: Profile,
    *,
    requires: Sequence[str] = (),
    probes: str = "",
    over: Callable[[], Iterable[Case]] | Sequence[str] | None = None,
    needs_hardware: bool = True,
    is_distributed: bool = False,
    seconds: float = 60.0,
    kind: str = "accelerator",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function of a module in ``areas`` a check. Arguments are those of ``Check``; ``over`` is its cases, or values of one
    parameter."""

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        area = function.__module__.rpartition(".")[2]
        cases = over if over is None or callable(over) else (lambda: [(profile, tuple(value.split(","))) for value in over])
        function.conformance_check = Check(  # type: ignore[attr-defined]
            area, function.__name__, function, profile, tuple(requires), probes, cases, needs_hardware, is_distributed, seconds, kind
        )
        return function

    return mark


def checks_of(area: str) -> list[Check]:
    """The checks of an area, in the order of its module."""
    module = importlib.import_module(f"accelkit_conformance.areas.{area}")
    found = (getattr(value, "conformance_check", None) for value in vars(module).values())
    return [one for one in found if isinstance(one, Check) and one.area == area]


def all_checks() -> list[Check]:
    """Every check, by area. Imports no torch."""
    return [one for area in AREAS for one in checks_of(area)]


@functools.cache
def _by_name(area: str) -> dict[str, Check]:
    return {one.name: one for one in checks_of(area)}


def find(test: str) -> tuple[Check, tuple[str, ...]]:
    """The check of an id, and its parameters.

    Raises:
        UsageError: If there is no such check.
    """
    path, _, parameters = test.removesuffix("]").partition("[")
    area, _, name = path.partition("/")
    found = _by_name(area).get(name) if area in AREAS else None
    if found is None:
        raise UsageError(f"there is no check {path!r}", hint="accelkit conformance list shows them")
    return found, tuple(parameters.split(",")) if parameters else ()


def num_processes(test: str) -> int:
    """How many processes run this test together."""
    found, parameters = find(test)
    return int(parameters[0]) if found.is_distributed else 1


def area_of(test: str) -> str:
    return test.partition("/")[0]


def capability(key: str, parameters: Sequence[str]) -> str:
    """``key`` with its places filled: ``dtype.{1}`` of ``("add", "float32")`` is ``dtype.float32``."""
    return key.format(*parameters)
