"""The digest of the machine's state: what changes it, and which processes of a job have the same one."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources

import pytest

from accelkit.discovery import machine_state

# In one piece: the output of torchrun's processes is unbuffered, and print writes part after part.
PRINTS_DIGEST = "import os; from accelkit.discovery import machine_state; os.write(1, f'{machine_state.digest()}\\n'.encode())"
linux = pytest.mark.skipif(sys.platform != "linux", reason="there is a digest only on Linux")


def digests(monkeypatch, job: str, count: int) -> set[str | None]:
    """Return the digests of the first processes of a recorded job."""
    recorded = json.loads((resources.files("accelkit_builtin.clusters") / "sample_jobs" / f"{job}.json").read_text("utf-8"))
    found = set()
    for process in recorded["processes"][:count]:
        with monkeypatch.context() as patched:
            for name, value in process["environ"].items():
                patched.setenv(name, value)
            found.add(machine_state.digest())
    return found


@linux
@pytest.mark.parametrize("job", ["deepspeed", "lsf_jsrun", "mpich", "openmpi", "pals", "slurm_srun_2x2", "slurm_openmpi", "torchrun"])
def test_two_processes_on_a_machine_have_the_same_digest(monkeypatch, job):
    assert len(digests(monkeypatch, job, 2)) == 1


@linux
def test_processes_with_different_devices_have_different_digests(monkeypatch):
    assert len(digests(monkeypatch, "slurm_gpus_per_task", 2)) == 2


@linux
@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_STEP_GPUS", "LD_PRELOAD"])
def test_a_variable_that_may_limit_devices_changes_the_digest(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    before = machine_state.digest()
    monkeypatch.setenv(name, "1")
    assert machine_state.digest() != before


@linux
@pytest.mark.parametrize(
    "launcher",
    [("torch.distributed.run", "--nproc-per-node", "2"), ("accelkit", "launch", "--accelerator", "cpu", "--devices", "2")],
    ids=lambda words: words[0],
)
def test_two_runs_of_a_launcher_have_the_same_digest(tmp_path, launcher):
    script = tmp_path / "script.py"
    script.write_text(PRINTS_DIGEST)
    found = set()
    for _ in range(2):
        done = subprocess.run([sys.executable, "-m", *launcher, str(script)], capture_output=True, text=True, check=True)
        found |= {line.split()[-1] for line in done.stdout.splitlines()}
    assert len(found) == 1
