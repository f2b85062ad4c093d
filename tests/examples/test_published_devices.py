"""docs/published-devices.md, the plugins that it shows, and the programs for defects, which were run on the devices by ``make devices``."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEVICES = ROOT / "examples" / "published-devices"
RESULTS = ROOT / "docs" / "published-devices"
NAMES = sorted(path.parent.name for path in DEVICES.glob("*/device.toml"))
PROGRAMS = sorted(DEVICES.glob("*/defects/*.py"))
SHOWN = [name for name in NAMES if (RESULTS / f"{name}.json").exists()]
"""The devices that have been run. The others have a folder, and wait for someone who runs them."""


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(DEVICES))
    import page

    yield page
    del sys.modules["page"]


@pytest.fixture
def run(page):
    import run

    yield run
    del sys.modules["run"]


def lines_of(path):
    """The lines of a program that are neither empty nor part of its docstring."""
    tree = ast.parse(path.read_text("utf-8"))
    without = ast.unparse(ast.Module(tree.body[1:] if ast.get_docstring(tree) else tree.body, []))
    return [line for line in without.splitlines() if line.strip()]


def test_the_page_is_made_of_what_is_kept_beside_it(page):
    assert page.text() == page.PAGE.read_text("utf-8"), "python examples/published-devices/run.py --page writes it"


def test_the_page_depends_on_what_was_found(page, monkeypatch, tmp_path):
    before = page.text()
    for path in RESULTS.rglob("*.*"):
        target = tmp_path / path.relative_to(RESULTS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    assert page.text() == before
    name = SHOWN[0]
    printed = next(path for path in (tmp_path / name).glob("*.txt") if path.stem != "digits")
    printed.write_text("it works now\n")
    summary = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
    area = next(iter(summary["summary"]["areas"]))
    summary["summary"]["areas"][area]["pass"] += 1000
    (tmp_path / f"{name}.json").write_text(json.dumps(summary))
    after = page.text()
    assert "it works now" in after
    assert f"| {area} | {summary['summary']['areas'][area]['pass']} of" in after


def test_the_causes_are_grouped_and_without_the_names_of_capabilities(page):
    errors = ["RuntimeError: no kernel at 0x1f", "RuntimeError: no kernel at 0x2e", "KeyError: 'x'"]
    reasons = [
        f"dtype.float64: undeclared, and does not work{where} ({error})"
        for where, error in zip(("", " for 1 of 8 inputs", ""), errors, strict=True)
    ]
    assert [page.cause_of(reason) for reason in reasons] == errors
    assert page.cause_of("this needs two devices") == "this needs two devices"
    assert page.groups([*reasons, reasons[0]]) == [(3, errors[0]), (1, errors[2])]


@pytest.mark.parametrize("name", SHOWN)
def test_each_program_that_shows_failures_exists_and_each_failure_that_it_shows_was_found(monkeypatch, name):
    monkeypatch.syspath_prepend(str(DEVICES))
    import reproduce

    failures = reproduce.failures(name)
    for stem, globs in tomllib.loads((DEVICES / name / "device.toml").read_text("utf-8"))["shown_by"].items():
        for glob in globs:
            shown = {reproduce.shown_by(one) for one in failures if reproduce.matches(glob, one)}
            assert shown == {DEVICES / name / "defects" / f"{stem}.py"}, f"{glob} matches no failure of {name}, or one that is shown before"
        assert (DEVICES / name / "defects" / f"{stem}.py").exists()
    for module in ("page", "run", "reproduce"):
        del sys.modules[module]


def test_a_device_that_was_not_run_is_an_error_that_says_how_to_run_it():
    found = subprocess.run([sys.executable, DEVICES / "reproduce.py", "nosuch"], check=False, capture_output=True, text=True)
    assert found.returncode == 2
    assert 'there is no report of nosuch: make devices NAMES="nosuch" makes it' in found.stderr


def test_a_program_that_does_not_end_is_ended(run):
    code, printed = run.output_of([sys.executable, "-c", "import threading; threading.Event().wait()"], {}, seconds=0.1)
    assert (code, run.conclusion(printed)) == (124, "ended after 0.1 s, because it had not finished")


def test_the_conclusion_of_a_program_is_its_last_line_or_the_reason_of_its_error(run):
    assert run.conclusion("epoch 1\n99 % are right\n\n") == "99 % are right"
    assert run.conclusion("setting up acme failed\n  why: no driver\n  what to do: install it\n") == "no driver"


@pytest.mark.parametrize("name", NAMES)
def test_a_plugin_is_short(name):
    assert len((DEVICES / name / f"accelkit_{name}.py").read_text("utf-8").splitlines()) <= 15


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_a_program_for_a_defect_is_short_and_needs_only_torch(path):
    assert len(lines_of(path)) <= 10
    assert "accelkit" not in path.read_text("utf-8")
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert (RESULTS / path.parts[-3] / f"{path.stem}.txt").read_text("utf-8").strip(), "make devices keeps what it printed"


def test_no_result_is_left_of_a_program_that_is_gone():
    expected = {(path.parts[-3], path.stem) for path in PROGRAMS} | {(name, "digits") for name in SHOWN}
    assert {(path.parent.name, path.stem) for path in RESULTS.glob("*/*.txt")} == expected
