"""The checks that make up the suite. They are defined in the modules of ``areas``. This module does not import torch.

A check is a function. Its first argument is the subject, which represents the plugin under test; parameters may follow. A check passes
if the function returns. A check that fails raises an AssertionError that says what is wrong. An example, without the assertion::

    @check("smoke", requires=["memory_statistics"])
    def peak_resets(subject):
        \"\"\"After reset_peak_memory_stats, the peak equals the current allocation.\"\"\"

The id of a check is ``area/name`` or ``area/name[parameter,...]``: ``memory/peak_resets``, ``operators/forward[add,float32]``.
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
"""The profiles. Each profile includes the profiles before it."""
PROFILES: tuple[Profile, ...] = get_args(Profile)

AREAS = (
    "contract", "isolation", "device", "capabilities", "memory", "streams", "random", "distributions", "transfer",
    "interchange", "layout", "serialization", "operators", "arguments",
    "autograd", "modules", "optimizers", "precision", "training", "checkpoint", "determinism", "dataloader", "errors", "compile",
    "profiling", "collectives", "ddp", "fsdp", "bridges",
    "precision_dtypes", "precision_gradients", "precision_scaling", "precision_state",
    "precision_lifecycle", "precision_distributed",
    "strategy_gradients", "strategy_steps", "strategy_state", "strategy_processes",
    "cluster_ranks", "cluster_detection", "cluster_errors", "cluster_jobs",
    "hooks_calls", "hooks_order",
)  # fmt: skip
"""The areas, in the order in which reports list them. The module ``areas/<area>.py`` holds an area's checks; the docstring of the module
says what they assert."""

SUBJECT_KINDS = ("accelerator", "precision", "cluster", "strategy", "hooks")
EVERY_KIND = "plugin"
"""The kind of a check that tests plugins of every kind."""

SIZES = ("2", "3")
"""The numbers of processes with which each distributed check runs."""

Case = tuple[Profile, tuple[str, ...]]
"""The first profile that includes a case of a check, and the parameters of that case."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One assertion about a subject.

    Attributes:
        area: The area that contains the check.
        name: The name of the check within its area.
        function: The function that makes the assertion.
        profile: The first profile that includes the check. If ``cases`` is given, each case has its own profile instead.
        requires: The capabilities that the check needs. If one of them is declared ``none``, the check does not run. ``{0}`` in a
            capability stands for the first parameter of the case.
        probes: The capability whose presence the check determines, if any. The check runs even if the capability is declared ``none``; if
            the check then passes, the result is ``over-unsupported``.
        cases: A function that returns the cases. A case is a profile and the parameters of one run of the check. None for a check without
            parameters.
        needs_hardware: Whether the check uses an accelerator, which must be loaded before the check runs.
        is_distributed: Whether several processes can run the check together. If True, the first parameter of each case is the number of
            processes.
        seconds: The time limit in seconds.
        kind: The kind of plugin that the check tests, or EVERY_KIND.
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
        """Return the id of every case, with the first profile that includes it. This method may import torch."""
        if self.cases is None:
            return [(self.profile, f"{self.area}/{self.name}")]
        return [(profile, f"{self.area}/{self.name}[{','.join(parameters)}]") for profile, parameters in self.cases()]

    def is_for(self, kind: str) -> bool:
        """Return whether the check tests plugins of this kind."""
        return self.kind in (kind, EVERY_KIND)

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
    """Return a decorator that registers a function of a module in ``areas`` as a check.

    All arguments except ``over`` are the attributes of :class:`Check` with the same names.

    Args:
        over: The cases of the check. Either a function that returns the cases, with their profiles (see ``Check.cases``), or a list of
            strings. Each string holds the parameters of one case, separated by commas; the profile of this case is ``profile``.
    """

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        area = function.__module__.rpartition(".")[2]
        cases = over if over is None or callable(over) else (lambda: [(profile, tuple(value.split(","))) for value in over])
        function.conformance_check = Check(  # type: ignore[attr-defined]
            area, function.__name__, function, profile, tuple(requires), probes, cases, needs_hardware, is_distributed, seconds, kind
        )
        return function

    return mark


def one_and_several() -> list[Case]:
    """Return a case with one process for the profile ``training``, and cases with several processes for the profile ``distributed``."""
    return [("training", ("1",)), *(("distributed", (size,)) for size in SIZES)]


def checks_of(area: str) -> list[Check]:
    """Return the checks of an area, in the order in which its module defines them."""
    module = importlib.import_module(f"accelkit_conformance.areas.{area}")
    found = (getattr(value, "conformance_check", None) for value in vars(module).values())
    return [one for one in found if isinstance(one, Check) and one.area == area]


def all_checks() -> list[Check]:
    """Return all checks, ordered by area, without importing torch."""
    return [one for area in AREAS for one in checks_of(area)]


@functools.cache
def _by_name(area: str) -> dict[str, Check]:
    return {one.name: one for one in checks_of(area)}


def find(test: str) -> tuple[Check, tuple[str, ...]]:
    """Return the check and the parameters of a test id such as ``autograd/in_place[add_]``. The parameters are not validated.

    Raises:
        UsageError: If there is no such check.
    """
    path, _, parameters = test.removesuffix("]").partition("[")
    area, _, name = path.partition("/")
    found = _by_name(area).get(name) if area in AREAS else None
    if found is None:
        raise UsageError(f"there is no check {path!r}", hint="accelkit conformance list shows the tests")
    return found, tuple(parameters.split(",")) if parameters else ()


def num_processes(test: str) -> int:
    """Return the number of processes that run this test together."""
    found, parameters = find(test)
    return int(parameters[0]) if found.is_distributed else 1


def area_of(test: str) -> str:
    return test.partition("/")[0]


def capability(key: str, parameters: Sequence[str]) -> str:
    """Return ``key`` with its placeholders filled: ``dtype.{1}`` with ``("add", "float32")`` gives ``dtype.float32``."""
    return key.format(*parameters)
