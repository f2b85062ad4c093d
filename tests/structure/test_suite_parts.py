"""The parts of the test suite: each is a make target, each test belongs to one, and the report says what a reader needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from xml.etree import ElementTree

import pytest
import run_parts
import suite_parts
from suite_parts import ROOT, Part

PARTS = suite_parts.read()
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
MARKERS = {line.partition(":")[0] for line in SETTINGS["markers"]}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_a_make_target_that_can_be_set_up(name):
    done = subprocess.run(["make", "--dry-run", f"setup-{name}", name], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_what_a_part_names_exists(part):
    assert [folder for folder in part.folders if not (ROOT / folder).exists()] == []
    assert set(part.markers) <= MARKERS


def test_no_two_parts_claim_the_same_tests():
    claims = [claim for part in PARTS.values() for claim in (*part.folders, *part.markers)]
    assert len(claims) == len(set(claims))


@pytest.mark.parametrize(
    ("path", "markers", "part"),
    [
        ("tests/a/test_x.py", [], "test"),
        ("tests/jobs/test_x.py", [], "test-jobs"),
        ("tests/jobs/deep/test_x.py", [], "test-jobs"),
        ("tests/jobs/deep/test_own.py", ["timeout"], "test-own"),
        ("tests/jobs/test_x.py", ["slurm"], "test-clusters"),
        ("tests/jobs/test_x.py", ["slurm", "smoke"], "test"),
        ("vendor/tests/test_x.py", [], "test"),
    ],
)
def test_a_test_belongs_to_one_part(path, markers, part):
    parts = [
        Part("test", "", "", 1),
        Part("test-jobs", "", "", 1, folders=("tests/jobs",)),
        Part("test-own", "", "", 1, folders=("tests/jobs/deep/test_own.py",)),
        Part("test-clusters", "", "", 1, markers=("slurm",)),
    ]
    assert suite_parts.part_of(path, markers, parts) == part


def test_help_lists_every_part():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for part in PARTS.values():
        assert f"make {part.name} " in shown
        assert f"needs {part.needs}" in shown


def test_tests_that_share_a_fixture_of_their_module_run_in_one_process(tmp_path):
    """pytest-xdist ignores groups with a pytest that it does not know, and says nothing.

    The tests need no verdict on the fake XPU, which would be compiled for it in a fresh clone.
    """
    (tmp_path / "test_some.py").write_text(
        "import os, pytest\n\n@pytest.fixture(scope='session')\n"
        "def probed_fake_xpu(tmp_path_factory): return tmp_path_factory.mktemp('empty')\n\n"
        "@pytest.fixture(scope='module')\ndef shared(): open(f'{os.getpid()}.made', 'x').close()\n\n"
        "@pytest.mark.parametrize('number', range(8))\ndef test_it(shared, number): pass\n"
    )
    options = [
        "-p",
        "no:cacheprovider",
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        tmp_path,
        "-p",
        "conftest",
        "-n",
        "2",
        "--dist",
        "loadgroup",
    ]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-P", "-m", "pytest", *options, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert "8 passed" in done.stdout, done.stdout + done.stderr
    assert len(list(tmp_path.glob("*.made"))) == 1


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """A part of 100 s that took 130 s: one test passed, one failed, one was skipped, one is expected to fail."""
    monkeypatch.setattr(run_parts, "RESULTS", tmp_path)
    root = ElementTree.Element("testsuite")
    for name, seconds, child in (("a", 3, None), ("b", 90, "failure"), ("c", 0, "skipped"), ("d", 1, "skipped")):
        case = ElementTree.SubElement(root, "testcase", classname="tests.some", name=name, time=str(seconds))
        if child:
            ElementTree.SubElement(case, child, type="pytest.xfail" if name == "d" else "pytest.skip", message="no GPU here\nat all")
    ElementTree.ElementTree(root).write(tmp_path / "test-x.xml")
    return run_parts.Outcome(Part("test-x", "", "", 100), 5, 130, 1)


def test_the_report_counts_tests_and_names_what_failed_what_was_skipped_and_what_is_slow(outcome):
    lines = run_parts.report([outcome]).splitlines()
    row = next(line for line in lines if line.startswith("test-x "))
    assert row.split() == ["test-x", "5", "130", "100", "4", "1", "1", "FAILED", "(exit", "code", "1)"]
    assert "     1  no GPU here" in lines
    slowest = lines.index("The 20 slowest tests:")
    assert lines[slowest + 1] == "  90.0 s  tests.some::b"
    assert [line for line in lines if "30% over its budget of 100 s" in line and line.startswith("test-x")]


def test_a_part_within_its_tolerance_is_not_named(outcome):
    outcome.seconds = 125
    assert "over its budget" not in run_parts.report([outcome])


def test_a_run_that_is_told_to_stop_reports_on_the_parts_that_have_ended(tmp_path):
    """Two parts, of which the second does not end; the Makefile's targets write no result."""
    program = f"""
import os, pathlib, signal, sys, threading
sys.path.insert(0, {str(ROOT / "tests")!r})
import run_parts
from suite_parts import Part

def make(target):
    if target == "test-long":
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        threading.Event().wait()
    return 0

run_parts.make = make
run_parts.RESULTS = pathlib.Path({str(tmp_path)!r})
sys.exit(run_parts.run_all([Part("test-short", "", "", 100), Part("test-long", "", "", 100)]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 128 + 15
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["test-short", "0", "0", "100", "0", "0", "0", "passed"] in rows
    assert rows[-1] == ["test-long", "not", "completed"]
