"""Mutation testing of the conformance suite: run it on broken plugins (mutants) and record which tests detect each one.

Each mutant breaks one area. A mutant is killed if a test of this area fails on it.

On an accelerator mutant, two groups of tests run. The first group is the tests of the mutant's area. They come from the profile
``training`` if the area's tests in ``full`` take long, and otherwise from ``full``. If the mutant names a check, the tests of this check in
``full`` run too. The second group is the profile ``smoke``. Its tests of the areas ``contract`` and ``isolation``, which need no hardware,
run only if the mutant breaks one of these two areas. Tests of torch.compile are left out of both groups.

On a mutant that is not an accelerator, all tests for its kind of plugin run.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from accelkit import AccelkitError, PluginRecord
from accelkit.discovery.metadata import installed_version
from accelkit_conformance import checks, mutation_scores, profiles
from accelkit_conformance.expectations import torch_defects
from accelkit_conformance.mutants import MOST_OF_ONE_MECHANISM, Mutant
from accelkit_conformance.report import Report
from accelkit_conformance.results import BAD, Result
from accelkit_conformance.run import accelerators_for, find_subject
from accelkit_conformance.runner import Runner
from accelkit_conformance.worker_pool import Order

SECONDS = 15.0
LEAST_COUNTED = 40
_UNBROKEN = Mutant("unbroken", "operators", "none", "accelkit_conformance.mutants.broken:Unbroken", "No fault: every test must pass.")
_WIDEST: Mapping[str, checks.Profile] = dict.fromkeys(("operators", "layout", "autograd", "modules"), "training")
_WITHOUT_HARDWARE = ("contract", "isolation")


@dataclasses.dataclass(frozen=True, slots=True)
class Autopsy:
    """The outcome of running the suite on a mutant.

    Attributes:
        mutant: The mutant.
        killers: The tests that failed on the mutant: a mapping from test id to kind of result.
        num_run: The number of tests that were run on the mutant.
    """

    mutant: Mutant
    killers: Mapping[str, str]
    num_run: int

    @property
    def is_killed(self) -> bool:
        """Whether at least one test of the mutant's area failed on the mutant."""
        return any(checks.area_of(test) == self.mutant.area for test in self.killers)

    def by_area(self) -> dict[str, int]:
        counts = collections.Counter(checks.area_of(test) for test in self.killers)
        return {area: counts[area] for area in checks.AREAS if counts[area]}


def suite_of(mutant: Mutant, *, is_own_area_only: bool = False) -> list[str]:
    """Return the ids of the tests to run on a mutant (see the top of this module). If ``is_own_area_only``, return only the tests of the
    mutant's area. Tests that fail because of a defect in torch are left out."""
    version = installed_version("torch") or ""
    if mutant.kind != "accelerator":
        every = profiles.suite("full", version, mutant.kind).tests
        return [test for test in every if not is_own_area_only or checks.area_of(test) == mutant.area]
    widest = _WIDEST.get(mutant.area, "full")
    passed_over = ("compile",) if mutant.area in _WITHOUT_HARDWARE else ("compile", *_WITHOUT_HARDWARE)
    smoke = [test for test in profiles.suite("smoke", version).tests if checks.area_of(test) not in passed_over]
    own = [test for test in profiles.suite(widest, version).tests if checks.area_of(test) == mutant.area and "compile" not in test]
    if mutant.check:
        own += [test for test in profiles.suite("full", version).tests if _check_of(test) == f"{mutant.area}/{mutant.check}"]
    defects = torch_defects(version)
    tests = dict.fromkeys(own if is_own_area_only else [*smoke, *own])
    return [test for test in tests if not any(defect.matches(test) for defect in defects)]


def examine(
    record: PluginRecord,
    mutant: Mutant,
    folder: Path,
    tests: Sequence[str],
    *,
    parallel: int = 1,
    seconds: float | None = SECONDS,
    is_until_killed: bool = False,
) -> Autopsy:
    """Run the tests on a mutant, and return the outcome.

    Args:
        record: The plugin from which the mutant is derived.
        mutant: The broken plugin.
        folder: The folder for the logs of the workers.
        tests: The ids of the tests.
        parallel: The number of tests that run at a time.
        seconds: The time limit of each test in seconds. None means that each test has its own time limit. The tests' own limits are also
            used if the mutant is a cluster environment, or if ``is_until_killed`` is True and the mutant is not an accelerator.
        is_until_killed: Whether to stop at the first test of the mutant's area that fails. The test that detected the mutant in an
            earlier self-test then runs first, and the tests of small profiles run before the others, so that the smallest profile that
            detects a new mutant is known.
    """
    # The processes of a job may take longer than SECONDS to start, which must not count as a failure.
    limit = None if mutant.kind == "cluster" or (is_until_killed and mutant.kind != "accelerator") else seconds
    order = Order(mutant.record(record), seconds=limit, accelerators=accelerators_for(mutant.kind))
    killers, num_run = {}, 0
    for number, group in enumerate(_in_order(tests, mutant) if is_until_killed else [tests]):
        logs = folder / str(number)
        logs.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Runner(order, logs, parallel=parallel, reruns=0).run(group)) as events:
            for result in (event for event in events if isinstance(event, Result)):
                num_run += 1
                if result.kind in BAD:
                    killers[result.id] = result.kind
                    if is_until_killed and checks.area_of(result.id) == mutant.area:
                        return Autopsy(mutant, killers, num_run)
    return Autopsy(mutant, killers, num_run)


def _in_order(tests: Sequence[str], mutant: Mutant) -> list[list[str]]:
    """Return the tests in groups, in the order in which the groups run on a mutant.

    The first group is the test that detected the mutant in an earlier self-test (``mutation_scores.FILE``), if there is one. The other
    groups are the tests of each profile that are in no smaller profile, the smallest profile first. In each of these groups, the tests of
    the check that the mutant names come first, and then the tests whose parameters include a name from the mutant's description. The other
    tests are ordered so that every check runs its first test before any check runs its second one. Empty groups are left out.
    """
    version = installed_version("torch") or ""
    counts: collections.Counter[str] = collections.Counter()
    places = {}
    named = {word for quoted in re.findall(r"``(.+?)``", mutant.description) for word in re.findall(r"\w+", quoted)}
    for test in tests:
        check = _check_of(test)
        is_named = not named.isdisjoint(re.findall(r"\w+", test.removeprefix(check)))
        places[test] = (check != f"{mutant.area}/{mutant.check}", not is_named, counts[check])
        counts[check] += 1
    recorded = mutation_scores.read()["killers"].get(mutant.name)
    groups = [[test for test in tests if test == recorded]]
    left = [test for test in sorted(tests, key=places.__getitem__) if test != recorded]
    for profile in checks.PROFILES:
        held = set(profiles.suite(profile, version, mutant.kind).tests)
        groups.append([test for test in left if test in held])
        left = [test for test in left if test not in held]
    return [group for group in groups if group]


def examine_all(
    mutants: Sequence[Mutant],
    parallel: int,
    watch: Callable[[Autopsy], Any],
    *,
    is_own_area_only: bool = False,
    is_until_killed: bool = False,
) -> list[Autopsy]:
    """Test each mutant with the tests that ``suite_of`` returns, several mutants at a time.

    A failure on a mutant proves nothing if the test also fails on the working plugin from which the mutant is derived. The tests are
    therefore also run on the working plugins. If ``is_until_killed`` is False, the working plugins are tested before the mutants, with all
    tests. If ``is_until_killed`` is True, the working plugins are tested after the mutants, with only the tests that failed on a mutant.

    Args:
        mutants: The broken plugins.
        parallel: The number of mutants that are tested at a time.
        watch: A function that is called with the outcome of each mutant.
        is_own_area_only: Whether to run only the tests of each mutant's area, without the profile ``smoke``.
        is_until_killed: Whether to stop testing a mutant as soon as a test of the mutant's area has failed.

    Returns:
        The outcome of each mutant, in the order of ``mutants``.

    Raises:
        AccelkitError: If a test fails on a working plugin.
    """
    bases = {(one.kind, one.base): base_record(one) for one in mutants}
    with tempfile.TemporaryDirectory(prefix="accelkit-selftest-") as name, ThreadPoolExecutor(parallel) as pool:
        tests = {one.name: suite_of(one, is_own_area_only=is_own_area_only) for one in mutants}
        if not is_until_killed:
            _check_healthy(bases, mutants, tests, Path(name), parallel)
        done: dict[str, Autopsy] = {}
        runs = [
            pool.submit(examine, bases[one.kind, one.base], one, Path(name) / one.name, tests[one.name], is_until_killed=is_until_killed)
            for one in mutants
        ]
        try:
            for future in as_completed(runs):
                autopsy = future.result()
                done[autopsy.mutant.name] = autopsy
                watch(autopsy)
        finally:
            pool.shutdown(cancel_futures=True)
        if is_until_killed:
            _check_healthy(bases, mutants, {key: list(one.killers) for key, one in done.items()}, Path(name), parallel)
    return [done[one.name] for one in mutants]


def _check_healthy(
    bases: Mapping[tuple[str, str], PluginRecord],
    mutants: Sequence[Mutant],
    tests: Mapping[str, Sequence[str]],
    folder: Path,
    parallel: int,
) -> None:
    """For each mutant, run its tests on the working plugin from which it is derived. ``tests`` is keyed by the names of mutants.

    Raises:
        AccelkitError: If a test fails on a working plugin.
    """
    for number, ((kind, base), record) in enumerate(bases.items()):
        chosen = dict.fromkeys(test for one in mutants if (one.kind, one.base) == (kind, base) for test in tests[one.name])
        unbroken = _UNBROKEN if kind == "accelerator" else Mutant("unbroken", "", "", record.value, "", kind, base)
        healthy = examine(record, unbroken, folder / f"unbroken-{number}", list(chosen), parallel=parallel, seconds=None)
        if healthy.killers:
            raise AccelkitError(
                f"tests fail on the {kind} {base} without a fault",
                why=", ".join(healthy.killers),
                hint=f"fix these first: accelkit conformance run {base} --kind {kind}",
            )


def base_record(mutant: Mutant) -> PluginRecord:
    """Return the record of the plugin from which a mutant is derived. Mutants of hook plugins are derived from ``HookLog``."""
    if mutant.kind == "hooks":
        from accelkit_conformance.mutants.hook_log import RECORD

        return RECORD  # accelkit itself has no hook plugin
    return find_subject(mutant.base, mutant.kind)


def narrow(autopsies: Sequence[Autopsy]) -> list[str]:
    """Return the names of the mutants that were detected only by narrow checks.

    A check is narrow if it detected just one mutant. ``objections`` does not count the mutants that only narrow checks detected, because a
    check may have been written just to detect one mutant.
    """
    victims: dict[str, set[str]] = collections.defaultdict(set)
    for one in autopsies:
        for test in one.killers:
            victims[_check_of(test)].add(one.mutant.name)
    return [one.mutant.name for one in autopsies if one.killers and all(len(victims[_check_of(test)]) == 1 for test in one.killers)]


def objections(autopsies: Sequence[Autopsy], *, is_whole: bool) -> Iterator[str]:
    """Yield the problems of a self-test.

    A problem is a mutant that no test of its own area detected, or a mechanism (kind of fault) that too many mutants share. If all mutants
    were run (``is_whole``), it is also a problem if fewer than ``LEAST_COUNTED`` were killed, not counting those that ``narrow`` returns.
    """
    for one in autopsies:
        if not one.is_killed:
            elsewhere = f"; tests of other areas that detected it: {len(one.killers)}" if one.killers else ""
            yield f"{one.mutant.name} survived: no test of the area {one.mutant.area} detected it{elsewhere}"
    not_counted = set(narrow(autopsies))
    counted = sum(one.is_killed and one.mutant.name not in not_counted for one in autopsies)
    if is_whole and counted < LEAST_COUNTED:
        yield f"only {counted} mutants count; at least {LEAST_COUNTED} are required"
    for mechanism, count in collections.Counter(one.mutant.mechanism for one in autopsies).items():
        if count > MOST_OF_ONE_MECHANISM:
            yield f"{count} mutants share the mechanism {mechanism!r}; at most {MOST_OF_ONE_MECHANISM} are allowed"


def _check_of(test: str) -> str:
    return test.partition("[")[0]


def idle_checks(autopsies: Sequence[Autopsy]) -> list[str]:
    """Return the checks that ran and detected no mutant, as ``area/name``."""
    run = {_check_of(test) for one in autopsies for test in suite_of(one.mutant)}
    found = {_check_of(test) for one in autopsies for test in one.killers}
    return sorted(run - found)


def report(autopsies: Sequence[Autopsy], *, is_whole: bool, is_until_killed: bool = False) -> Report:
    """Return the kill matrix, in the format ``accelkit.conformance.selftest/1``.

    ``is_whole`` is passed to ``objections``. If ``is_until_killed``, the lists ``narrow`` and ``idle_checks`` are empty, because most of
    the tests did not run.
    """
    return {
        "schema": "accelkit.conformance.selftest/1",
        "mutants": [
            {
                **dataclasses.asdict(one.mutant),
                "is_killed": one.is_killed,
                "run": one.num_run,
                "by_area": one.by_area(),
                "killers": dict(one.killers),
            }
            for one in autopsies
        ],
        "scores": mutation_scores.rows((one.mutant, one.killers) for one in autopsies),
        "objections": list(objections(autopsies, is_whole=is_whole)),
        "narrow": [] if is_until_killed else narrow(autopsies),
        "idle_checks": [] if is_until_killed else idle_checks(autopsies),
    }
