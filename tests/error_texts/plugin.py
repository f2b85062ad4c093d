"""The fixture ``error_text``: compares a whole text with its entry in ``error_texts.ambr``, the page on which all of them are reviewed.

::

    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime(num_nodes=0)
    assert "num_nodes=0" in caught.value.what   # the meaning, which the test holds
    assert caught.value == error_text           # the wording, which a reviewer reads

It takes an exception, a warning that was caught, or a program's output. An entry has its test's name; ``make snapshots`` rewrites them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.data import SnapshotCollections
from syrupy.extensions.amber import AmberSnapshotExtension
from syrupy.location import PyTestLocation

from .normalisation import ROOT, normalised
from .obsolete import Recorded

SNAPSHOT = Path(__file__).with_suffix("").with_name("error_texts.ambr")
RECORDED = pytest.StashKey[Recorded]()


class ErrorTexts(AmberSnapshotExtension):
    """All entries in one file, whatever part of the tests runs."""

    def serialize(self, data: object, *, matcher: Any, **_: Any) -> str:
        return str(matcher(data=data, path=()))

    @classmethod
    def get_location(cls, *, test_location: PyTestLocation, index: int | str) -> str:
        return str(SNAPSHOT)

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: int | str = 0) -> str:
        # Not the node id: pytest-xdist adds the group to that.
        name = f"{Path(test_location.filepath).relative_to(ROOT).as_posix()}::{test_location.nodename}"
        return f"{name}.{index}" if index else name

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        return True

    def discover_snapshots(self, **_: Any) -> SnapshotCollections:
        """Nothing, so that syrupy takes no entry of a test that did not run for unused: obsolete.py finds those that are."""
        return SnapshotCollections()


@pytest.fixture
def error_text(request: pytest.FixtureRequest, snapshot: SnapshotAssertion, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What this test's errors say, to be compared with: ``assert caught.value == error_text``, in the order in which they come."""
    folders = {str(request.getfixturevalue(name)): "<tmp>" for name in ("tmp_path",) if name in request.fixturenames}
    folders |= {str(tmp_path_factory.getbasetemp()): "<basetemp>"}

    def matcher(*, data: object, path: object) -> str:
        if isinstance(data, warnings.WarningMessage):
            data = data.message
        return normalised(f"{type(data).__name__}: {data}" if isinstance(data, BaseException) else str(data), folders)

    expected = snapshot.with_defaults(extension_class=ErrorTexts, matcher=matcher)
    yield expected
    names = {result.snapshot_name for result in expected.executions.values()}
    request.config.stash[RECORDED].names[ErrorTexts.get_snapshot_name(test_location=expected.test_location)] = names


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RECORDED] = Recorded(has_node_ids=any("::" in argument for argument in config.args))
    # An entry is named by the file, too.
    config.addinivalue_line("filterwarnings", r"ignore:\s*Can not relate snapshot name")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before any is deselected."""
    functions = [item for item in items if isinstance(item, pytest.Function) and "error_text" in item.fixturenames]
    config.stash[RECORDED].collected = {ErrorTexts.get_snapshot_name(test_location=PyTestLocation(item)) for item in functions}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[pytest.TestReport]:
    report = yield
    if report.when == "call" and report.passed and isinstance(item, pytest.Function):
        item.config.stash[RECORDED].passed.add(ErrorTexts.get_snapshot_name(test_location=PyTestLocation(item)))
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """``--snapshot-update`` removes what no test compares with; not under pytest-xdist, where no process sees all tests."""
    alone = not session.config.pluginmanager.hasplugin("dsession") and not hasattr(session.config, "workerinput")
    if not (session.config.option.update_snapshots and alone and SNAPSHOT.exists()):
        return
    extension = ErrorTexts()
    names = {entry.name for entry in extension.read_snapshot_collection(snapshot_location=str(SNAPSHOT))}
    if obsolete := session.config.stash[RECORDED].obsolete(names):
        extension.delete_snapshots(snapshot_location=str(SNAPSHOT), snapshot_names=obsolete)
        print(f"\nremoved from {SNAPSHOT.name}:", *sorted(obsolete), sep="\n  ")
