"""Fixtures for all tests."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

import preloaded
import pytest
import suite_parts

import accelkit
from accelkit.discovery import verdict_cache

EMPTY_CACHE = {
    Path(__file__).parent / name
    for name in ("builtin", "cli", "discovery", "docs/test_text_width.py", "security", "selection", "structure", "zoo")
}
"""Folders and files with tests that start with an empty cache: they test how plugins are probed, or use no device.

Those of `make check` are among them, because a trial compiles the fake XPU in a fresh clone.
"""
_CACHE_NUMBERS = itertools.count()


@dataclasses.dataclass(frozen=True)
class PluginSite:
    """A folder on ``sys.path`` in which distributions are installed as pip does: modules and a dist-info folder for each."""

    folder: Path

    def install(
        self,
        distribution: str,
        source: str = "",
        *,
        accelerators: Mapping[str, str] | None = None,
        entry_points: str = "",
        requires: Sequence[str] = (),
        version: str = "1.0",
        summary: str = "",
    ) -> Path:
        """Install ``source`` as a module with the name of the distribution. ``accelerators`` maps names to classes of the module.

        Returns the dist-info folder.
        """
        module = distribution.replace("-", "_")
        (self.folder / f"{module}.py").write_text(source)
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        lines = [f"{name} = {module}:{cls}" for name, cls in (accelerators or {}).items()]
        text = entry_points or "\n".join(["[accelkit.accelerators]", *lines])
        (info / "entry_points.txt").write_text(text + "\n")
        metadata = [f"Metadata-Version: 2.3\nName: {distribution}\nVersion: {version}\nSummary: {summary}"]
        (info / "METADATA").write_text("\n".join([*metadata, *(f"Requires-Dist: {line}" for line in requires)]) + "\n\n")
        (info / "RECORD").write_text("")
        accelkit.refresh()
        return info


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--forbid-skips",
        metavar="MARKERS",
        default=os.environ.get("FORBID_SKIPS", ""),
        help="comma-separated markers; a skipped test with one of these markers counts as failed (the default is $FORBID_SKIPS)",
    )
    parser.addoption("--part", choices=list(suite_parts.read()), help="run only the tests of this part of the suite (tests/parts.toml)")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop(
        "PYTHONUNBUFFERED", None
    )  # with it, print() writes a line in two parts, and output of another process may appear between them
    known = {line.partition(":")[0].strip() for line in config.getini("markers")}
    if unknown := set(filter(None, config.getoption("--forbid-skips").split(","))) - known:
        raise pytest.UsageError(f"--forbid-skips contains unknown markers: {', '.join(sorted(unknown))}")


def pytest_sessionfinish() -> None:
    """Save what ``make coverage`` has measured in this process: xdist kills a worker that takes more than ten seconds to end."""
    if "COVERAGE_PROCESS_START" in os.environ:
        import coverage

        if (measured := coverage.Coverage.current()) is not None:
            measured.save()


@pytest.hookimpl(tryfirst=True)  # must run before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the part that is requested.

    Tests that share a fixture of their module run in one process, which creates it once. Tests with a
    longer timeout start first, so that the other processes do not wait for them at the end.
    """
    items.sort(key=_timeout, reverse=True)
    for item in items:
        if _shares_a_fixture(item) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    if not (wanted := config.getoption("--part")):
        return
    parts = suite_parts.read().values()
    kept, others = [], []
    for item in items:
        path = item.path.relative_to(suite_parts.ROOT).as_posix()
        part = suite_parts.part_of(path, {marker.name for marker in item.iter_markers()}, parts)
        (kept if part == wanted else others).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=others)


def _timeout(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout") or 0)


def _shares_a_fixture(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    return any(definition.scope == "module" for found in item._fixtureinfo.name2fixturedefs.values() for definition in found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test as failed if ``--forbid-skips`` names one of its markers."""
    report = yield
    forbidden = [name for name in item.config.getoption("--forbid-skips").split(",") if name and item.get_closest_marker(name)]
    if report.skipped and forbidden and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = (
            "failed",
            f"skipped, which --forbid-skips forbids for {', '.join(forbidden)}: {report.longrepr}",
        )
    return report


@pytest.fixture
def plugin_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginSite]:
    """An empty PluginSite. Modules that were imported from it are removed from ``sys.modules`` afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    before = set(sys.modules)
    yield PluginSite(folder)
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    accelkit.refresh()


@pytest.fixture
def forked_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the Python processes that are started through ``sys.executable``, with torch already imported.

    For tests that start commands or probe plugins, and do not test how a child process starts, crashes or is killed.
    """
    monkeypatch.setattr(sys, "executable", str(preloaded.programs() / "python"))


@pytest.fixture(scope="session")
def probed_fake_xpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the verdict on the fake XPU, if it is installed. Each trial costs an import of torch."""
    folder = tmp_path_factory.mktemp("tried")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELKIT_CACHE_DIR", str(folder))
        verdict_cache.tried([record for record in accelkit.plugins("accelerator") if record.name == "fake_xpu"])
    return folder


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate each test from the caches of other tests and of the user, and from the user's environment variables.

    The cache contains the verdict on the fake XPU, except for tests of how plugins are probed and tested, whose cache is empty.
    """
    for name in [name for name in os.environ if name.startswith("ACCELKIT_") or name == "FORBID_SKIPS"]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp(
        f"cache-{next(_CACHE_NUMBERS)}", numbered=False
    )  # pytest would look for the next number in all folders
    if EMPTY_CACHE.isdisjoint((request.path, request.path.parent)):
        shutil.copytree(request.getfixturevalue("probed_fake_xpu"), folder, dirs_exist_ok=True)
    monkeypatch.setenv("ACCELKIT_CACHE_DIR", str(folder))
    accelkit.refresh()
