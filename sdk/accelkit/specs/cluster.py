"""The cluster environment specification: where a process learns its rank, world size and rendezvous address."""

from __future__ import annotations

import os
from collections.abc import Mapping

from accelkit.specs.hooks import hookimpl
from accelkit.types import Detection


class ClusterEnvironment:
    """What a launcher or scheduler tells a process. Reading it changes nothing in ``environ``.

    The defaults describe one process on one machine, that nobody else launched.

    Args:
        environ: The environment variables to read; this process's own by default.
    """

    name: str = ""
    plugin: str = ""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = os.environ if environ is None else environ

    @hookimpl
    def detect_cluster(self, environ: Mapping[str, str]) -> Detection | None:
        """This environment's claim on a process with these variables, or None. The highest rank wins."""
        return None

    @property
    def creates_processes_externally(self) -> bool:
        """Whether somebody else (torchrun, srun, mpirun) starts the processes."""
        return False

    @property
    def world_size(self) -> int:
        """Number of processes of the job."""
        return 1

    @property
    def global_rank(self) -> int:
        """This process's rank, from 0 to ``world_size - 1``."""
        return 0

    @property
    def local_rank(self) -> int:
        """This process's rank on its machine."""
        return 0

    @property
    def node_rank(self) -> int:
        """This machine's rank."""
        return 0

    @property
    def num_nodes(self) -> int:
        """Number of machines of the job."""
        return 1

    @property
    def main_address(self) -> str:
        """Address of the rendezvous: rank 0's machine."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """TCP port of the rendezvous."""
        return 12910

    @property
    def job_id(self) -> str | None:
        """The scheduler's name for the job."""
        return None

    @property
    def restart_count(self) -> int:
        """How often the job was started again."""
        return 0

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Raise ContradictionError, naming the flag to change, if these do not fit what was launched."""

    def __repr__(self) -> str:
        return f"<cluster environment {self.name or type(self).__name__}>"
