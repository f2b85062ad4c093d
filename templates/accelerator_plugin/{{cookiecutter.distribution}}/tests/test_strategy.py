"""Tests of the strategy with two CPU processes: both end up with the same parameters as one process that trains on all samples."""

from __future__ import annotations

import re
import subprocess
import sys

import torch
import training


def test_two_processes_train_as_one() -> None:
    launch = [sys.executable, "-m", "accelkit", "launch", "--accelerator", "cpu", "--devices", "2"]
    command = [*launch, "--strategy", "{{ cookiecutter.accelerator }}_parallel", training.__file__]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr
    alone = training.train(*training.start(), backward=torch.Tensor.backward)
    assert re.findall(r"process \d of 2: (.+)", run.stdout) == [alone, alone]
