"""Real schedulers and launchers, or the line that installs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import slurm as real_slurm
from cluster_parts import PARTS, ROOT, TELL

Told = list[dict[str, Any]]


@pytest.fixture(scope="session")
def slurm() -> Iterator[real_slurm.Slurm]:
    """One SLURM for all tests of a process; mark them ``slurm`` and put them into its ``xdist_group``."""
    if missing := real_slurm.missing():
        pytest.skip(missing)
    with real_slurm.cluster() as running:
        yield running


@pytest.fixture(scope="session")
def openmpi() -> Sequence[str]:
    """Open MPI's mpirun and the options that it needs on a small machine, as root too."""
    program = shutil.which("mpirun")
    if program is None or "Open MPI" not in subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("mpirun of Open MPI not found: apt-get install -y --no-install-recommends openmpi-bin")
    return [program, "--allow-run-as-root", "--oversubscribe"]


@pytest.fixture(scope="session")
def mpich() -> Sequence[str]:
    """MPICH's mpirun."""
    program = PARTS / "mpirun"
    if not program.exists():
        pytest.skip(f"{program.relative_to(ROOT)} not found: make cluster-parts (or pip install mpich in an environment there)")
    return [str(program)]


@pytest.fixture(scope="session")
def ray_python() -> str:
    """The Python that has Ray, and accelkit too."""
    program = PARTS / "python"
    if not program.exists() or subprocess.run([program, "-c", "import ray, accelkit"], capture_output=True, check=False).returncode:
        pytest.skip(f"{program.relative_to(ROOT)} with ray not found: make cluster-parts (or pip install ray in an environment there)")
    return str(program)


@pytest.fixture
def told() -> Callable[[str], Told]:
    """What the processes of ``detection_program.py`` printed, by rank; other lines of the output are left out."""

    def read(output: str) -> Told:
        lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"environment"')]
        return sorted(lines, key=lambda line: line["global_rank"])

    return read


@pytest.fixture
def run_why() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``accelkit why --cluster`` with variables."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "accelkit", "why", "--cluster", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)

    return run


@pytest.fixture
def run_told(told: Callable[[str], Told]) -> Callable[..., Told]:
    """Run ``detection_program.py`` under a launcher; an error shows what was printed."""

    def run(*launcher: str, **variables: str) -> Told:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | variables
        command = [*launcher, sys.executable, str(TELL)]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environ)
        assert result.returncode == 0, result.stdout + result.stderr
        return told(result.stdout)

    return run
