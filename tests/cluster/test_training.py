"""The same program under every launcher: its weights are those of one process on the whole batches (float64, 1e-12)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from free_port import free_port

HERE = Path(__file__).parent
TRAINING = str(HERE / "training_program.py")
RECOVERY = str(HERE.parent / "distributed" / "recovery_program.py")


def trained(*command: str, **variables: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | {"OMP_NUM_THREADS": "1"} | variables
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environ)
    assert result.returncode == 0, result.stdout + result.stderr
    (line,) = [line for line in result.stdout.splitlines() if "trained" in line]
    return line


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
def test_srun_on_two_nodes(slurm):
    """No launcher of ours."""
    result = slurm.run(
        "srun", "-N2", "--ntasks-per-node=2", sys.executable, TRAINING, seconds=200, MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1"
    )
    assert "trained slurm ddp 4 [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)]" in result.stdout, result.stderr


@pytest.mark.openmpi
def test_mpirun_of_open_mpi(openmpi):
    assert "trained mpi ddp 4" in trained(*openmpi, "-n", "4", sys.executable, TRAINING)


@pytest.mark.mpich
def test_mpirun_of_mpich(mpich):
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert "trained mpi ddp 4" in trained(*mpich, "-n", "4", sys.executable, TRAINING, **variables)


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
@pytest.mark.timeout(600)
def test_usr1_requeues_a_slurm_job_which_goes_on(slurm, tmp_path):
    """``scancel --signal`` sends USR1 to the tasks: all save, the job is queued again, and ends with the same weights."""
    expected = tmp_path / "undisturbed"
    expected.mkdir()
    script = f"srun {sys.executable} {RECOVERY} {{}} ddp -"
    variables = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    job = slurm.submit("-N2", "-n2", script=script.format(expected), **variables)
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    folder = tmp_path / "told"
    folder.mkdir()
    job = slurm.submit("-N2", "-n2", "--requeue", script=script.format(folder), HOLD="3", REQUEUE="1", **variables)
    slurm.wait_until((folder / "ckpt" / "step-0").exists, "the first checkpoint", seconds=100)
    slurm.run("scancel", "--signal=USR1", job)
    slurm.wait(job, "PENDING")
    stopped = [(folder / f"stopped-{rank}").read_text() for rank in range(2)]
    assert stopped[0] == stopped[1]
    deadline = time.monotonic() + 200
    while slurm.restarts(job) < 1 or slurm.wait(job, "PENDING", "RUNNING", "COMPLETED") == "PENDING":
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
        assert time.monotonic() < deadline, slurm.output(job)
        time.sleep(0.5)
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert slurm.restarts(job) == 1
    first, second = (torch.load(place / "weights.pt") for place in (expected, folder))
    assert all(torch.equal(first[name], second[name]) for name in first)
