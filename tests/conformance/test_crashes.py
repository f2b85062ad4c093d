"""A crash is a failure, also if the test passes when it is run again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from accelkit.selection import resolve
from accelkit_conformance.runner import Executor
from accelkit_conformance.worker_pool import Order

TESTS = ("device/string_round_trip", "operators/forward[add,float32]", "operators/forward[mm,float32]")

ONCE = """
import ctypes, os, time
from accelkit_conformance.mutants.broken import Broken


class Once(Broken):
    '''The first matmul of all processes goes wrong; a marker file remembers it.'''

    def fault(self, name, call, args, kwargs, func):
        if name == "mm":
            try:
                os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return call()
            {what}
        return call()
"""

ERRORS = {
    "segfault": "ctypes.string_at(0)",
    "hang": "time.sleep(1000)",
    "device lost": "import torch; raise torch.AcceleratorError('fake_xpu: the device was lost')",
    "error": "raise RuntimeError('busy')",
}


@pytest.fixture
def install(plugin_site, tmp_path):
    """Install a plugin whose device goes wrong once, and return the path of its marker file."""

    def make(what):
        marker = tmp_path / "marker"
        plugin_site.install("vendor-once", ONCE.format(marker=str(marker), what=ERRORS[what]), accelerators={"once": "Once"})
        return marker

    return make


def run(*arguments):
    select = [option for test in TESTS for option in ("--select", test)]
    command = [sys.executable, "-m", "accelkit", "conformance", "run", "once", "--profile", "smoke", "-n", "1", *select, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.smoke
@pytest.mark.usefixtures("forked_workers")
def test_a_device_that_crashes_once_fails_the_run_and_the_report_says_that_it_passed_afterwards(install, tmp_path):
    marker = install("segfault")
    found = run("--json", str(tmp_path / "report.json"))
    assert marker.exists(), found.stderr
    assert found.returncode == 1, found.stdout
    assert "2 of 3 tests passed, 1 failed" in found.stdout
    line = next(line for line in found.stdout.splitlines() if line.startswith("crash:"))
    assert "SIGSEGV" in line
    assert "when it was run again: passed" in line
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["summary"]["kinds"] == {"pass": 2, "crash": 1}
    assert report["results"][2]["attempts"] == 2
    again = run("--rerun-failed", "--json", str(tmp_path / "again.json"))
    assert again.returncode == 1, "the crash cannot be removed from the report by running the test again"
    assert json.loads((tmp_path / "again.json").read_text())["summary"]["kinds"] == {"pass": 2, "crash": 1}


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("hang", "timeout", "12 s"),
        ("device lost", "crash", "the device was lost"),
        ("error", "flaky", "busy"),
    ],
)
def test_only_an_error_may_be_flaky(install, tmp_path, what, kind, says):
    install(what)
    executor = Executor(Order(resolve("once"), seconds=12), tmp_path, reruns=3)
    try:
        passed, found = (executor.run(test) for test in TESTS[1:])
    finally:
        executor.close()
    assert passed.kind == "pass", passed
    assert (found.kind, found.attempts) == (kind, 2)
    assert says in found.reason
    assert executor.num_workers == (1 if kind == "flaky" else 2), "a process in which a device was lost runs no other test"
