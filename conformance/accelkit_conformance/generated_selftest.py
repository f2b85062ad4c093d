"""Mutation testing with generated mutants: run a sample of the mutants, and report which of them the suite detects.

Each mutant has one fault, which can be switched on and off. A mutant is killed if a test of its area fails while the fault is active, and
then passes while it is not. Both runs of the test use the same worker process, unless the first run makes the process unusable. Many
mutants can share a worker process, because they differ only in their faults.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from accelkit import PluginRecord
from accelkit.discovery.metadata import installed_version
from accelkit_conformance import checks
from accelkit_conformance.mutants.generated import AXES, Generated, tests_of
from accelkit_conformance.results import BAD, TRIGGERED
from accelkit_conformance.worker_pool import Order, WorkerGroup

SECONDS = 30.0
_VALUE = "accelkit_conformance.mutants.switchable:Switchable"

Verdict = Literal["killed", "survived", "not triggered"]
VERDICTS: tuple[Verdict, ...] = ("killed", "survived", "not triggered")


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of running tests on a generated mutant.

    Attributes:
        mutant: The mutant.
        verdict: ``killed``, ``survived``, or ``not triggered`` if no test caused the fault to change a result.
        killer: The test that detected the mutant; empty if none did.
        num_run: The number of tests that were run on the mutant.
    """

    mutant: Generated
    verdict: Verdict
    killer: str
    num_run: int


class _Examiner:
    """Runs tests in a worker process, on one mutant after another.

    The worker is replaced by a new process if it cannot run the next test, for example because a fault has crashed it. It is also replaced
    if a test fails in it while no fault is active, because an earlier fault may have left something behind in the process.
    """

    def __init__(self, order: Order, folder: Path, numbers: Iterator[int]) -> None:
        self._order, self._folder, self._numbers = order, folder, numbers
        self._group: WorkerGroup | None = None

    def outcome(self, mutant: Generated, tests: Sequence[str]) -> Outcome:
        """Run tests on a mutant until one of them detects it, and return the outcome."""
        is_triggered = False
        for number, test in enumerate(tests, 1):
            result = self._group_for(test).run(test, SECONDS, fault=mutant.id)
            is_triggered = is_triggered or TRIGGERED in result.notes
            if result.kind in BAD and self._passes_without_a_fault(test):
                return Outcome(mutant, "killed", test, number)
        return Outcome(mutant, "survived" if is_triggered else "not triggered", "", len(tests))

    def close(self) -> None:
        """End the worker process."""
        if self._group is not None:
            self._group.end()
            self._group = None

    def _passes_without_a_fault(self, test: str) -> bool:
        if self._group_for(test).run(test, SECONDS, fault="").kind not in BAD:
            return True
        self.close()  # an earlier fault may have left something behind in this process
        return False

    def _group_for(self, test: str) -> WorkerGroup:
        needs_hardware = checks.find(test)[0].needs_hardware
        if self._group is None or not self._group.fits(1, needs_hardware):
            self.close()
            self._group = WorkerGroup(self._order, size=1, number=next(self._numbers), needs_hardware=needs_hardware, folder=self._folder)
        return self._group


def examine(record: PluginRecord, mutants: Sequence[Generated], parallel: int, watch: Callable[[Outcome], Any]) -> list[Outcome]:
    """Run the tests of each mutant's area on that mutant, several mutants at a time.

    Args:
        record: The accelerator from which the mutants are derived.
        mutants: The generated mutants.
        parallel: The number of mutants that run at a time.
        watch: A function that is called with the outcome of each mutant. Several threads may call it at the same time.

    Returns:
        The outcomes, in the order of the mutants.
    """
    version = installed_version("torch") or ""
    order = Order(dataclasses.replace(record, value=_VALUE))
    numbers = itertools.count(1)

    def run(mine: Sequence[Generated]) -> list[Outcome]:
        examiner = _Examiner(order, Path(name), numbers)
        try:
            found = []
            for mutant in mine:
                found.append(examiner.outcome(mutant, tests_of(mutant, version)))
                watch(found[-1])
            return found
        finally:
            examiner.close()

    with tempfile.TemporaryDirectory(prefix="accelkit-selftest-") as name, ThreadPoolExecutor(parallel) as pool:
        shares = list(pool.map(run, [mutants[start::parallel] for start in range(parallel)]))
    by_mutant = {outcome.mutant: outcome for share in shares for outcome in share}
    return [by_mutant[mutant] for mutant in mutants]


def score(outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> list[tuple[str, list[int]]]:
    """Count the mutants with each verdict, for each group of mutants and for all mutants.

    Args:
        outcomes: The outcomes.
        key: A function that returns the group of an outcome: the area of its mutant, or the kind of fault of its mutant (a key of
            ``AXES``).

    Returns:
        For each group, the name of the group and a list of counts: the number of mutants in the group, followed by the number of mutants
        with each verdict, in the order of ``VERDICTS``. The last group, ``all``, contains all mutants.
    """
    groups: dict[str, collections.Counter[Verdict]] = collections.defaultdict(collections.Counter)
    for outcome in outcomes:
        groups[key(outcome)][outcome.verdict] += 1
        groups["all"][outcome.verdict] += 1
    order = [*AXES, *checks.AREAS, "all"]
    return [(name, [groups[name].total(), *(groups[name][verdict] for verdict in VERDICTS)]) for name in order if name in groups]


def report(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the outcomes in the format of the field ``generated`` of a kill matrix (schema ``accelkit.conformance.selftest/1``)."""
    return [
        {
            "id": one.mutant.id,
            "operator": one.mutant.operator,
            "axis": one.mutant.axis,
            "area": one.mutant.area,
            "verdict": one.verdict,
            "killer": one.killer,
            "run": one.num_run,
        }
        for one in outcomes
    ]
