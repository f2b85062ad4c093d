"""The main job, in forked interpreters; ``make demo`` runs it as a user does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_interpreters")

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"


def digits(*arguments):
    return subprocess.run([sys.executable, DIGITS, *arguments], capture_output=True, text=True, check=False)


# `make demo` trains in 32-true, and the table of precisions (test_precisions.py) in all of them, every time.
@pytest.mark.parametrize(
    "precision",
    ["bf16-mixed", *(pytest.param(one, marks=pytest.mark.soak) for one in ("32-true", "64-true", "16-true", "bf16-true", "16-mixed"))],
)
def test_it_learns_and_survives_saving(precision, tmp_path):
    epochs = ["--epochs", "6"] if precision.startswith("16") else []  # CPUs take minutes for float16's convolutions
    result = digits("--accelerator", "cpu", "--precision", precision, "--output-dir", str(tmp_path), *epochs)
    assert result.returncode == 0, result.stdout + result.stderr
    trained, reloaded = re.findall(r"([\d.]+)%", result.stdout.splitlines()[-1])
    assert float(trained) >= 97
    assert trained == reloaded
    assert (tmp_path / "step-0" / "manifest.json").exists()


def test_too_little_training_exits_1_and_says_so():
    result = digits("--accelerator", "cpu", "--epochs", "1")
    assert result.returncode == 1
    assert "97%" in result.stdout.splitlines()[-1]
    assert "--epochs" in result.stdout.splitlines()[-1]


def test_a_device_that_is_not_there_is_an_error_and_no_cpu():
    result = digits("--accelerator", "ipu")
    assert result.returncode == 4
    assert result.stdout == ""
    assert "digits: the accelerator 'ipu' cannot be used" in result.stderr


def test_two_processes_learn_it_together():
    launch = [sys.executable, "-m", "accelkit", "launch", "--accelerator", "cpu", "--devices", "2"]
    result = subprocess.run([*launch, DIGITS], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"num_processes +2\n", result.stdout)
    trained, reloaded = re.findall(r"([\d.]+)%", result.stdout.splitlines()[-1])
    assert float(trained) >= 97
    assert trained == reloaded


def test_more_devices_than_were_launched_are_refused_with_the_line_that_launches_them():
    result = digits("--accelerator", "cpu", "--devices", "2")
    assert result.returncode == 1
    assert "accelkit launch --accelerator cpu --devices 2" in result.stderr
    assert result.stderr.rstrip().endswith("digits.py --accelerator cpu --devices 2")
