"""fxccl: collectives, DDP and FSDP2 on two and three processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "collectives_program.py"


@pytest.mark.parametrize(
    ("backend", "world_size"),
    [
        ("fxccl", 3),
        ("cpu:gloo,fake_xpu:fxccl", 2),
        pytest.param("fxccl", 2, marks=pytest.mark.soak),
        pytest.param("cpu:gloo,fake_xpu:fxccl", 3, marks=pytest.mark.soak),
    ],
)
def test_on_processes(backend, world_size, tmp_path):
    shared = {"WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, PROGRAM, backend, tmp_path / "store"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank)}, **pipes) for rank in range(world_size)]
    outputs = [process.communicate()[0] for process in processes]  # the program has a time limit of its own
    assert [process.returncode for process in processes] == [0] * world_size, "\n".join(outputs)
    assert all("everything agreed" in output for output in outputs)
    assert not any("Time stats" in output for output in outputs), "DDP finds no timer of the device"
