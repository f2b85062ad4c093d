"""The conformance suite as a pytest plugin: ``pytest -p accelkit_conformance.pytest_plugin --pyargs accelkit_conformance --accelerator
NAME``.

pytest loads this plugin only if it is named with ``-p``, so installing accelkit does not affect other pytest runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from accelkit import AccelkitError
from accelkit_conformance.checks import SUBJECT_KINDS, Profile
from accelkit_conformance.pytest_api import Suite, report_to_pytest
from accelkit_conformance.run import Options

_HOME = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("accelkit conformance")
    group.addoption("--accelerator", metavar="NAME", help="name of the plugin to test")
    group.addoption("--subject-kind", choices=SUBJECT_KINDS, default="accelerator", help="kind of the plugin")
    group.addoption("--profile", choices=get_args(Profile), default="training", help="profile of tests to run")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    return Tests.from_parent(parent, path=file_path) if file_path == _HOME / "checks.py" else None


class Tests(pytest.File):
    """Collector of pytest items: one item for each test of a profile."""

    def collect(self) -> Iterator[pytest.Item]:
        name = self.config.getoption("--accelerator")
        if not name:
            raise pytest.UsageError("--accelerator NAME is required: it names the plugin to test")
        try:
            suite = Suite(name, self.config.getoption("--subject-kind"), Options(profile=self.config.getoption("--profile")))
        except AccelkitError as error:
            raise pytest.UsageError(str(error)) from error
        for test in suite.tests:
            yield Test.from_parent(self, name=test, suite=suite)


class Test(pytest.Item):
    """A pytest item that runs one test of the suite in a worker process, or in several if the test needs several ranks."""

    def __init__(self, *, suite: Suite, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self._suite = suite

    def runtest(self) -> None:
        report_to_pytest(self._suite.run(self.name))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name
