"""Where the reports of a run go, and what happens if they cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_workers")

EXPIRED = """
[[expected_failure]]
test = "operators/forward[add,float32]"
reason = "adds wrongly"
issue = "https://example.org/1"
expires = 2020-01-01
"""


def run(*arguments):
    command = [sys.executable, "-m", "accelkit", "conformance", "run", "cpu", "--profile", "contract", "-n", "1", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_report_that_cannot_be_written_is_known_before_the_run(tmp_path, error_text):
    (tmp_path / "file").touch()
    answer = run("--junit", tmp_path / "good.xml", "--html", tmp_path / "file" / "report.html")
    assert answer.returncode == 2
    assert "report.html" in answer.stderr
    assert answer.stderr == error_text
    assert answer.stdout == "", "nothing was run"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_costs_one_report_and_not_the_others(tmp_path):
    answer = run("--html", "/dev/full", "--json", tmp_path / "deep" / "good.json", "--junit", tmp_path / "good.xml")
    assert answer.returncode == 2, answer.stderr
    assert "the html report /dev/full could not be written" in answer.stderr
    assert "the same options, --rerun-failed and another path for --html" in answer.stderr
    assert "Traceback" not in answer.stderr
    report = json.loads((tmp_path / "deep" / "good.json").read_text())
    assert report["run"]["is_complete"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["good.json", "good.xml"]
    assert Path("/dev/full").is_char_device(), "a device is written to, not replaced"
    again = run("--rerun-failed", "--html", tmp_path / "late.html")
    assert (again.returncode, (tmp_path / "late.html").exists()) == (0, True), again.stderr


def test_an_expired_excuse_lets_a_run_pass_and_certifies_nothing(tmp_path):
    (tmp_path / "old.toml").write_text(EXPIRED)
    answer = run("--expected-failures", tmp_path / "old.toml", "--json", tmp_path / "report.json")
    assert answer.returncode == 0, answer.stderr
    assert "1 expected failure has expired, so this run cannot be certified: operators/forward[add,float32] (2020-01-01)" in answer.stdout
    objections = json.loads((tmp_path / "report.json").read_text())["certification"]["objections"]
    assert "1 expected failure has expired: operators/forward[add,float32] (2020-01-01)" in objections
    assert run("--expected-failures", tmp_path / "old.toml", "--certify").returncode == 1
