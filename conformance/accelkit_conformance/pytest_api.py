"""Run the conformance suite from a vendor's own pytest tests::

    from accelkit_conformance.pytest_api import conformance

    test_conformance = conformance("acme", profile="training")

Each test of the profile becomes a pytest test, which runs in a worker process, so that a crash fails only that test.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelkit.errors import printable
from accelkit_conformance.checks import Profile
from accelkit_conformance.results import BAD, Result
from accelkit_conformance.run import Options, Run, availability_of, find_subject
from accelkit_conformance.runner import Executor


class Suite:
    """The tests of a profile for a plugin, run one at a time.

    Args:
        name: The name of the plugin.
        kind: The kind of the plugin.
        options: The options of the run.

    Raises:
        AccelkitError: If there is no such plugin, or no test to run.
    """

    def __init__(self, name: str, kind: str, options: Options) -> None:
        record = find_subject(name, kind)
        self._run = Run(record, availability_of(record, options.on), options)
        self.tests = self._run.tests
        self._executor: Executor | None = None

    def run(self, test: str) -> Result:
        """Run a test and return its result. The first call starts a worker, which is ended when this process exits."""
        if self._executor is None:
            folder = tempfile.TemporaryDirectory(prefix="accelkit-conformance-")
            self._executor = Executor(self._run.order(), Path(folder.name), reruns=self._run.options.reruns)
            atexit.register(folder.cleanup)
            atexit.register(self._executor.close)
        return self._executor.run(test)


def conformance(name: str, *, profile: Profile = "training", kind: str = "accelerator", select: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Return a pytest test that is parametrised over the tests of a profile.

    Assign the returned test to a name that pytest collects: ``test_conformance = conformance("acme", profile="smoke")``. Each test of the
    profile becomes a pytest test, which runs in a worker process, so that a crash fails only that test.

    Args:
        name: The name of the plugin, as for ``accelkit conformance run``.
        profile: The tests to run: ``contract``, ``smoke``, ``training``, ``distributed`` or ``full``. Each profile includes the profiles
            before it.
        kind: The kind of the plugin: ``accelerator``, ``precision``, ``strategy``, ``cluster`` or ``hooks``.
        select: Patterns that select tests of the profile, as for ``--select``. Empty for all tests.

    Raises:
        AccelkitError: If there is no such plugin, or no test to run.
    """
    suite = Suite(name, kind, Options(profile=profile, select=select))

    @pytest.mark.parametrize("test", suite.tests)
    def test_conformance(test: str) -> None:
        report_to_pytest(suite.run(test))

    return test_conformance


def report_to_pytest(result: Result) -> None:
    """Report a result to pytest: do nothing if the test passed; otherwise, raise pytest's failure, skip or xfail exception."""
    if result.kind in (*BAD, "flaky"):
        pytest.fail(printable(f"{result.kind}: {result.reason}\n{result.detail}\n{result.reproducer}".rstrip()), pytrace=False)
    if result.kind == "unsupported":
        pytest.skip(printable(result.reason))
    if result.kind == "expected-failure":
        pytest.xfail(printable(result.reason))
