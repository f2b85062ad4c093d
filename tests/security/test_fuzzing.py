"""Files that accelkit reads, changed at random: an error of ours or an answer, never a traceback, a wait or gigabytes of memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("fuzz.py")
TARGETS = ["manifest", "index", "latest", "verdict", "journal", "report", "bundle"]


def fuzz(target, count, folder):
    folder.chmod(0o700)
    command = [sys.executable, str(PROGRAM), target, str(count), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"[-5000:]
    said = json.loads(result.stdout)
    assert said["read"] >= count
    assert said["peak"] < 2**30


@pytest.mark.parametrize("target", TARGETS)
def test_a_changed_file_is_an_error_or_an_answer(target, tmp_path):
    """A sample; ``make soak`` changes each 20,000 times."""
    fuzz(target, 200, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_twenty_thousand_changes_of_a_file(target, tmp_path):
    fuzz(target, 20_000, tmp_path)
