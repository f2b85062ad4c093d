"""A job, as ``accelkit launch`` was told it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from accelkit.launching.ranks import Program


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What to run, how often and where.

    Attributes:
        program: What every process runs.
        num_processes: On this machine.
        environ: Variables for every process, beside this process's own.
        num_nodes: Machines.
        node_rank: This machine's rank; None leaves the order to the rendezvous.
        rdzv_backend, rdzv_endpoint, rdzv_id: torch's rendezvous, ``c10d`` at ``host:port``. An empty endpoint is this machine.
        max_restarts: How often all processes are started again after one has failed.
        monitor_interval: Seconds between two looks at the processes.
        log_dir: Where their logs are kept; None for a temporary folder that only a failure keeps.
        grace_period: Seconds between SIGTERM and SIGKILL when the job is told to end.
    """

    program: Program
    num_processes: int
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_nodes: int = 1
    node_rank: int | None = None
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    max_restarts: int = 0
    monitor_interval: float = 0.1
    log_dir: Path | None = None
    grace_period: float = 25.0
