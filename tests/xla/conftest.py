"""XLA on this machine's CPU. ``make test-xla`` makes an environment with torch_xla, which needs its own torch, and runs these there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

os.environ["PJRT_DEVICE"] = "CPU"
if importlib.util.find_spec("torch_xla") is not None:
    import torch
    import torch_xla  # noqa: F401

    torch.zeros(1, device="xla")  # before the first backward pass of this process, which counts the devices


def pytest_collection_modifyitems(items):
    for item in items:
        if "/xla/" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"))  # torch 2.9's own, when it saves
            if importlib.util.find_spec("torch_xla") is None:
                item.add_marker(pytest.mark.skip(reason="torch_xla is not installed here: make test-xla"))


@pytest.fixture
def run(tmp_path):
    """Run a program in a process of its own, with these variables; its output."""

    def run_program(source, *launcher, code=0, **environ):
        path = tmp_path / "program.py"
        path.write_text(source)
        command = [sys.executable, *launcher, str(path)]
        result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environ, cwd=tmp_path, timeout=240, check=False)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr if code else result.stdout

    return run_program
