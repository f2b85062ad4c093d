"""A run of the suite: choose the tests, run them, and report. Neither a plugin nor torch is imported into this process."""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from accelkit import BrokenPluginError, PluginRecord, UsageError
from accelkit.discovery import verdict_cache
from accelkit.discovery.catalog import find, plugins
from accelkit.discovery.metadata import installed_version
from accelkit.selection import resolve
from accelkit_conformance import certification, expectations, plugin_trial, profiles
from accelkit_conformance.checks import Profile
from accelkit_conformance.device_info import versions
from accelkit_conformance.device_loss import Loss, LossDetector
from accelkit_conformance.journal import Journal, nothing_to_continue
from accelkit_conformance.report import SCHEMA, Report, coverage, summarise
from accelkit_conformance.results import BAD, CRASHED, Result
from accelkit_conformance.runner import Runner, Started, combined
from accelkit_conformance.worker_pool import Order

Watcher = Callable[[Result | Started], None]
MOST_SAMPLES = {"full": 16}
FEW_SAMPLES = 8
TESTED_ON_ACCELERATORS = ("precision", "strategy")
"""The kinds of plugins that are tested on working accelerators. ``--on`` selects the accelerators."""
_DEFAULT_ACCELERATORS = ("cpu", "fake_xpu")


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """Options for a run.

    Attributes:
        profile: The profile to run.
        select: Patterns that select tests of the profile; empty for all tests.
        parallel: The number of tests that run at a time; None for the number of cores, at most four.
        reruns: The number of times that a failed test is run again.
        seconds: The time limit of every test in seconds; None for each test's own limit.
        first_call_timeout: The time in seconds that is added to the time limit of the first run of each test, because a device may compile
            kernels during that run; None for the time that the accelerator declares.
        expected_failures: A file of expected failures that replaces the plugin's own.
        resume: Whether to continue an interrupted run from its journal.
        rerun_failed: Whether to run only the tests that the journal of an earlier run lists as failed or flaky, or does not list at all. A
            test that crashed in that run remains a failure, even if it passes now.
        on: The names of the accelerators on which a precision or a strategy is tested. If empty, the plugin is tested on the CPU, and also
            on the fake XPU if the fake XPU is installed.
    """

    profile: Profile = "training"
    select: tuple[str, ...] = ()
    parallel: int | None = None
    reruns: int = 3
    seconds: float | None = None
    first_call_timeout: float | None = None
    expected_failures: Path | None = None
    resume: bool = False
    rerun_failed: bool = False
    on: tuple[str, ...] = ()


def find_subject(name: str, kind: str) -> PluginRecord:
    """Find the plugin to test. For an accelerator, ``name`` can be any name that Runtime accepts.

    Raises:
        UnknownNameError, UnavailableError, PluginError: If ``name`` does not refer to a plugin, or the plugin cannot be used.
    """
    return resolve(name) if kind == "accelerator" else find(kind, name)  # type: ignore[arg-type]


def accelerators_for(kind: str, names: Sequence[str] = ()) -> tuple[PluginRecord, ...]:
    """Return the accelerators on which a plugin of this kind is tested. The tuple is empty if the kind is tested without an accelerator.

    Args:
        kind: The kind of the plugin.
        names: Names of accelerators, as Runtime accepts them. The default is the CPU and, if it is installed, the fake XPU.

    Raises:
        UsageError: If names are given for a kind that is tested without an accelerator, or if an accelerator cannot be used here.
        UnknownNameError, UnavailableError, PluginError: If a name does not refer to an accelerator.
    """
    if kind not in TESTED_ON_ACCELERATORS:
        if names:
            why = f"a plugin of the kind {kind} is tested without an accelerator"
            raise UsageError(f"--on {names[0]} has no effect", why=why, hint=f"use --on with --kind {' or '.join(TESTED_ON_ACCELERATORS)}")
        return ()
    installed = {record.name for record in plugins("accelerator")}
    records = tuple(resolve(name) for name in names or [name for name in _DEFAULT_ACCELERATORS if name in installed])
    for record in records:
        availability = availability_of(record)
        if availability["status"] != "usable":
            raise UsageError(
                f"--on {record.name}: the accelerator is {availability['status']}", why=availability["reason"], hint=availability["hint"]
            )
    return records


def availability_of(record: PluginRecord, on: Sequence[str] = ()) -> dict[str, str]:
    """Try a plugin in a child process. Return its ``status`` (usable, absent or broken), with a ``reason`` and a ``hint``.

    If the plugin is an accelerator, the child process also runs a computation on its device. A precision or a strategy is also tried on the
    accelerators that ``accelerators_for(record.kind, on)`` returns. If the plugin refuses all of these accelerators, its status is
    ``absent``.
    """
    if record.status != "available":
        return {"status": "broken", "reason": record.reason or record.status, "hint": record.hint}
    verdict = verdict_cache.tried([record])[record]
    if verdict.status == "usable" and (accelerators := accelerators_for(record.kind, on)):
        refused = plugin_trial.refusal(record, accelerators)
        if refused is not None:
            return {"status": "absent", **refused}
    return {"status": verdict.status, "reason": verdict.reason, "hint": verdict.hint}


class Run:
    """A run of a profile on a plugin.

    Attributes:
        loss: A description of the device loss that ended the run; None if no device was lost.

    Args:
        record: The plugin under test.
        availability: The outcome of the plugin's probe and trial: ``status``, ``reason``, ``hint``. Unless the plugin is usable, only the
            profile ``contract`` is run.
        options: The options of the run.

    Raises:
        AccelkitError: If there is no test to run, if the list of tests or of expected failures is invalid, or if an accelerator cannot be
            used.
    """

    def __init__(self, record: PluginRecord, availability: dict[str, str], options: Options) -> None:
        self.record, self.availability, self.options = record, availability, options
        torch_version = installed_version("torch") or ""
        is_usable = availability["status"] == "usable"
        self.profile: Profile = options.profile if is_usable else "contract"
        self.suite = profiles.suite(self.profile, torch_version, record.kind)
        if not self.suite.tests:
            raise UsageError(f"the profile {self.profile} has no test for plugins of the kind {record.kind}")
        self.tests = profiles.select(self.suite.tests, options.select) if options.select else list(self.suite.tests)
        self.accelerators = accelerators_for(record.kind, options.on) if is_usable else ()
        self.expectations = self._expectations(torch_version)
        self.parallel = options.parallel or max(1, min(4, os.cpu_count() or 1))
        self.journal = Journal(
            {
                "plugin": record.plugin,
                "name": record.name,
                "kind": record.kind,
                "fingerprint": record.fingerprint,
                "torch": torch_version,
                "python": sys.version,
                "prefix": sys.prefix,
                "suite": self.suite.digest,
                "select": options.select,
                "on": [one.fingerprint for one in self.accelerators],
                "expected": [one.as_dict() for one in self.expectations],
            }
        )
        self._peak_bytes, self._num_workers = 0, 0
        self.loss: Loss | None = None

    def execute(self, watch: Watcher) -> Report:
        """Run the tests and return the report. If the run is interrupted, the journal has the results so far.

        If the device is lost, the run ends. Of the failures on the lost device, only the first is kept.

        Args:
            watch: A function that is called with every event of the run.

        Raises:
            BrokenPluginError: If no worker can be started.
        """
        todo = self._todo()
        began = time.monotonic() - self.journal.seconds
        runner = Runner(self.order(), self.journal.folder, parallel=self.parallel, reruns=self.options.reruns)
        is_complete = False
        detector = LossDetector(self.accelerators or (self.record,)) if self._uses_device() else None
        events = runner.run(todo)
        try:
            for event in events:
                if isinstance(event, Result):
                    if runner.hello and not self.journal.hello:
                        self.journal.say_hello(runner.hello)
                    self.journal.add(self._with_crash(event), time.monotonic() - began)
                    watch(self.journal.results[event.id])
                    if detector is not None and (loss := detector.loss_after(event)) is not None:
                        self._end_after(loss)
                        break
                else:
                    watch(event)
            is_complete = self.loss is None
        except BrokenPluginError:  # a process could not be started
            if detector is None or not self.journal.hello or (loss := detector.find_loss()) is None:
                raise
            self._end_after(loss)
        finally:
            events.close()
            self._peak_bytes, self._num_workers = runner.peak_bytes, runner.num_workers
            self.journal.close(is_complete=is_complete)
        return self.report()

    def _uses_device(self) -> bool:
        """Return whether the run uses a device that can be lost."""
        return self.availability["status"] == "usable" and (bool(self.accelerators) or self.record.kind == "accelerator")

    def _end_after(self, loss: Loss) -> None:
        self.loss = loss
        self.journal.drop([test for test in loss.failed[1:] if test in self.journal.results])

    def order(self) -> Order:
        """Return the settings with which workers are started."""
        return Order(
            self.record,
            expectations=tuple(one.as_dict() for one in self.expectations),
            most_samples=MOST_SAMPLES.get(self.profile, FEW_SAMPLES),
            seconds=self.options.seconds,
            first_call_timeout=self.options.first_call_timeout,
            wants_coverage=self.profile == "full" and self.record.kind == "accelerator",
            accelerators=self.accelerators,
        )

    def report(self) -> Report:
        """Return the report on the results in the journal."""
        results = [self.journal.results[test] for test in self.tests if test in self.journal.results]
        failed = [result.id for result in results if result.kind == "expected-failure"]
        torch_defects = [one for one in self.expectations if one.is_torch_defect]
        declared = [one.as_dict() for one in self.expectations if not one.is_torch_defect or any(map(one.matches, failed))]
        objections = certification.objections(
            self.suite.tests,
            results,
            is_whole=not self.options.select and self.availability["status"] == "usable",
            expired=expectations.expired(declared, self.journal.started),
            torch_defects=torch_defects,
        )
        seen = {name for result in results for name in result.seen}
        hello = dict(self.journal.hello)
        must = hello.pop("required_overloads", None)
        report: Report = {
            "schema": SCHEMA,
            "subject": {
                "name": self.record.name,
                "kind": self.record.kind,
                "plugin": self.record.plugin,
                "value": self.record.value,
                "availability": self.availability,
                **({"accelerators": [f"{one.name} ({one.plugin})" for one in self.accelerators]} if self.accelerators else {}),
                **hello,
            },
            "suite": {"profile": self.profile, "torch": self.suite.torch, "digest": self.suite.digest, "tests": len(self.suite.tests)},
            "run": {
                "started": self.journal.started,
                "seconds": round(self.journal.seconds, 1),
                "parallel": self.parallel,
                "workers": self._num_workers,
                "peak_bytes": self._peak_bytes,
                "selected": list(self.options.select),
                "chosen": len(self.tests),
                "is_complete": len(results) == len(self.tests),
                **({"device_lost": str(self.loss)} if self.loss else {}),
            },
            "versions": versions(),
            "summary": summarise(results),
            "certification": {"is_certified": not objections, "objections": objections},
            "expected_failures": declared,
            "results": [{name: value for name, value in result.as_dict().items() if name != "seen"} for result in results],
        }
        if must and seen:
            report["coverage"] = coverage(must, seen)
        return report

    def _expectations(self, torch_version: str) -> list[expectations.Expectation]:
        path = self.options.expected_failures
        if path is None and self.record.kind == "accelerator":  # a plugin of another kind may have the name of an accelerator
            path = expectations.file_of(self.record.distribution, self.record.name)
        found = [] if path is None else expectations.read(path, torch_version)
        expectations.check_all_match(found, profiles.suite("full", torch_version, self.record.kind).tests)
        return [*found, *expectations.torch_defects(torch_version)] if self.record.kind == "accelerator" else found

    def _with_crash(self, result: Result) -> Result:
        """Return ``result``, unless the journal has an earlier crash or time-out of the same test.

        In that case, return the earlier result with an updated number of attempts and an updated reason. A rerun does not undo a crash or a
        time-out.
        """
        earlier = self.journal.results.get(result.id)
        return result if earlier is None or earlier.kind not in CRASHED else combined([earlier, result])

    def _todo(self) -> Sequence[str]:
        now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
        if not (self.options.resume or self.options.rerun_failed):
            self.journal.open(now, is_new=True)
            return self.tests
        if not self.journal.read() or (self.options.resume and self.journal.is_complete):
            what = "interrupted run" if self.options.resume else "earlier run"
            raise nothing_to_continue(what, "--resume" if self.options.resume else "--rerun-failed")
        self.journal.open(now, is_new=False)
        known = self.journal.results
        if self.options.rerun_failed:
            return [test for test in self.tests if test not in known or known[test].kind in (*BAD, "flaky")]
        return [test for test in self.tests if test not in known]
