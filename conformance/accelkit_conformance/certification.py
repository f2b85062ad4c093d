"""Certification: the conditions under which a plugin counts as conformant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accelkit_conformance import checks
from accelkit_conformance.expectations import Expectation
from accelkit_conformance.results import BAD, Result

MANDATORY = (
    "contract", "isolation", "device", "capabilities", "memory", "streams", "random", "distributions", "transfer",
    "interchange", "serialization", "optimizers", "precision",
    "training", "checkpoint", "determinism", "dataloader", "errors", "collectives", "ddp", "fsdp",
    "precision_dtypes", "precision_gradients", "precision_scaling", "precision_state",
    "precision_lifecycle", "precision_distributed",
    "strategy_gradients", "strategy_steps", "strategy_state", "strategy_processes",
    "cluster_ranks", "cluster_detection", "cluster_errors", "cluster_jobs",
    "hooks_calls", "hooks_order",
)  # fmt: skip
"""Areas in which no failure may be declared. Failures may be declared in the other areas: layout, operators, arguments, autograd,
modules, compile, profiling and bridges."""
LEAST_RUN = 0.95


def objections(
    tests: Sequence[str],
    results: Iterable[Result],
    *,
    is_whole: bool,
    expired: Sequence[str] = (),
    torch_defects: Sequence[Expectation] = (),
) -> list[str]:
    """Return the reasons why a run cannot be certified. The list is empty if the run can be certified.

    Args:
        tests: The ids of all tests of the profile.
        results: The results of the tests that were run.
        is_whole: Whether the run covered the whole profile, without a selection.
        expired: The expected failures that had expired when the run started, each as ``test (date)``.
        torch_defects: The expected failures that torch causes. Only these failures are allowed in the mandatory areas.
    """
    found = {result.id: result for result in results}
    reasons = [] if is_whole else ["only a part of the profile was selected"]
    missing = [test for test in tests if test not in found]
    if missing:
        reasons.append(f"{pluralize(len(missing), 'test was', 'tests were')} not run")
    if bad := [result.id for result in found.values() if result.kind in BAD]:
        reasons.append(f"{pluralize(len(bad), 'test', 'tests')} failed: {some(bad)}")
    if flaky := [result.id for result in found.values() if result.kind == "flaky"]:
        reasons.append(f"{pluralize(len(flaky), 'test was', 'tests were')} flaky: {some(flaky)}")
    excused = [result for result in found.values() if result.kind == "expected-failure" and checks.area_of(result.id) in MANDATORY]
    declared = [
        result.id for result in excused if not any(one.matches(result.id) and one.explanation == result.reason for one in torch_defects)
    ]
    if declared:
        reasons.append(f"{pluralize(len(declared), 'failure is', 'failures are')} declared in mandatory areas: {some(declared)}")
    if expired:
        reasons.append(f"{pluralize(len(expired), 'expected failure has', 'expected failures have')} expired: {some(expired)}")
    mandatory = [result for result in found.values() if checks.area_of(result.id) in MANDATORY and not result.is_declared_none]
    run = [result for result in mandatory if result.kind != "unsupported"]
    if mandatory and len(run) < LEAST_RUN * len(mandatory):
        reasons.append(f"{len(run)} of {len(mandatory)} tests of the mandatory areas were run; at least {LEAST_RUN:.0%} are required")
    return reasons


def pluralize(number: int, one: str, many: str) -> str:
    """Return a number with the phrase that fits it, such as ``1 test was`` or ``2 tests were``.

    Args:
        number: The number.
        one: The phrase for the number 1, such as ``test was``.
        many: The phrase for all other numbers, such as ``tests were``.
    """
    return f"{number} {one if number == 1 else many}"


def some(names: Sequence[str]) -> str:
    """Return the first three names as text, with an ellipsis if there are more."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
