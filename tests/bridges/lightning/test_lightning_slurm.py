"""SLURM: accelkit's environment is one of Lightning's, so that the Trainer saves and requeues."""

from __future__ import annotations

import importlib
import os
import subprocess
from pathlib import Path

from preloaded_lightning import python

from accelkit.bridges.lightning import trainer_kwargs

PROGRAM = Path(__file__).with_name("lightning_slurm_program.py")
STEP = {
    "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_NODES": "1",
    "SLURM_NNODES": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}  # fmt: skip


def test_accelkits_environment_is_a_slurm_environment(package, monkeypatch):
    """Also without --ntasks-per-node, on which Lightning's own insists."""
    two = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    for name, value in (STEP | two).items():
        monkeypatch.setenv(name, value)
    arguments = trainer_kwargs("fake_xpu", package=package)
    environment = arguments["plugins"][-1]
    environments = importlib.import_module(f"{'lightning.fabric' if package == 'lightning' else 'lightning_fabric'}.plugins.environments")
    assert isinstance(environment, environments.SLURMEnvironment)
    assert arguments["devices"] == 2
    assert (environment.world_size(), environment.global_rank(), environment.local_rank(), environment.node_rank()) == (2, 1, 1, 0)
    assert environment.detect(), "the processes belong to this environment"
    assert environment.main_address == "localhost"
    assert environment.auto_requeue


def test_a_job_that_is_told_to_end_saves_is_requeued_and_goes_on(tmp_path):
    """scontrol is a script here that notes what it was asked; the signal and both turns are real."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    environment = os.environ | STEP | {"PATH": f"{scontrol.parent}:{os.environ['PATH']}"}

    def turn(**more):
        command = [python(), str(PROGRAM), str(tmp_path / "work")]
        result = subprocess.run(command, capture_output=True, text=True, env=environment | more, timeout=240, check=False)
        assert result.returncode == 0, result.stderr[-4000:]
        return result.stdout.splitlines()[-1]

    assert turn().startswith("from step 0 to")
    assert (tmp_path / "asked").read_text() == "requeue 42\n"
    assert turn(SLURM_RESTART_COUNT="1").startswith("from step 5 to 12 on fake_xpu:0")
