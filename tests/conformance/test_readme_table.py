"""The table of what is supported, in a plugin's README."""

from __future__ import annotations

import json

import pytest
from command_runner import command_runner
from example_reports import EXPECTED, HOSTILE, NUM_CONTRACT, make_report

import accelkit
from accelkit.cli import main
from accelkit_conformance.commands import table
from accelkit_conformance.reports import page as pages

BEGIN, END = pages.begin("table"), pages.end("table")


@pytest.fixture
def write(tmp_path):
    def write(report):
        path = tmp_path / "report.json"
        path.write_text(json.dumps(report))
        return path

    return write


def ask(*arguments):
    return command_runner().invoke(main, ["conformance", "table", *map(str, arguments)])


def test_it_says_what_passed_on_what(write):
    printed = ask(write(make_report(["fail", "unsupported", "flaky"]))).stdout
    assert printed.startswith("vendor-acme==1.0 on Acme One: accelkit conformance suite, profile contract for torch")
    assert ", 2026-11-21: not certified.\n" in printed
    assert f"| contract | {NUM_CONTRACT - 3} of {NUM_CONTRACT - 1}, **1 failed**, 1 flaky, 1 not supported |\n" in printed
    assert "| `graphs` | none |\n" in printed
    assert ": certified.\n" in ask(write(make_report())).stdout


def test_it_says_that_the_device_was_not_there(write):
    absent = {"status": "absent", "reason": "no board", "hint": ""}
    printed = ask(write(make_report(availability=absent, device_names=[]))).stdout
    assert "vendor-acme==1.0 (device absent): " in printed


def test_names_cannot_steer_the_page(write):
    printed = ask(write(make_report(device_names=[HOSTILE, "a|b`c`"], expected=[EXPECTED]))).stdout
    assert "<" not in printed
    assert "a\\|b'c'" in printed


def test_it_replaces_what_stands_between_the_marks(write, tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"# Acme\n\n{BEGIN}No report yet.\n{END}\n\nThe rest.\n")
    report = write(make_report())
    for _ in range(2):
        assert ask(report, "--write", page).exit_code == 0
    text = page.read_text()
    assert text == f"# Acme\n\n{BEGIN}{ask(report).stdout}{END}\n\nThe rest.\n"


@pytest.mark.parametrize(
    "text", ["# Acme\n", f"{BEGIN}", f"{END}{BEGIN}", f"{BEGIN}{END}{END}", f"{END}{BEGIN}{END}", f"{BEGIN}{BEGIN}{END}"]
)
def test_a_page_without_the_marks_is_left_alone(write, tmp_path, text, error_text):
    page = tmp_path / "README.md"
    page.write_text(text)
    answer = ask(write(make_report()), "--write", page)
    assert (answer.exit_code, page.read_text()) == (2, text)
    assert all(part in answer.stderr for part in ("README.md", "<!-- accelkit conformance table -->", "<!-- end of the table -->"))
    assert answer.stderr == error_text


def test_what_is_no_report_is_refused(write, error_text):
    report = make_report()
    del report["summary"]
    with pytest.raises(accelkit.UsageError) as caught:
        table.command.main([str(write(report))], standalone_mode=False)
    assert "report.summary" in caught.value.why
    assert caught.value == error_text
