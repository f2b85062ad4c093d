"""The settings of a job that ``accelkit launch`` starts, and the environment variables of the job's processes."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from accelkit.launching.local_workers import Program

ROLE = "accelkit"
"""The role of all processes of a job. torch allows several roles; here there is only one."""
HERE = "127.0.0.1"
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def torchrun_variables(
    *,
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    group_rank: int,
    group_world_size: int,
    main_address: str,
    main_port: int,
    run_id: str,
    restart_count: int,
    max_restarts: int,
    uses_agent_store: bool,
) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a process.

    All processes have the same role, so the ranks within the role equal the global ranks.
    If the job runs on one machine, the result also has the variable that makes gloo use the loopback interface (see ``_on_loopback``).
    See https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(group_rank),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": ROLE,
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_WORLD_SIZE": str(group_world_size),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": main_address,
        "MASTER_PORT": str(main_port),
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(uses_agent_store),
    } | (_on_loopback() if group_world_size == 1 else {})


def _on_loopback() -> dict[str, str]:
    """Return the variables that make gloo listen only on the loopback interface, which other machines cannot reach.

    Return an empty dict if the user chose an interface, or if no loopback interface was found.
    """
    if _GLOO_INTERFACE in os.environ or not hasattr(socket, "if_nameindex"):
        return {}
    loopback = {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}
    return {_GLOO_INTERFACE: loopback.pop()} if loopback else {}


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """The program of a job, the number of machines and processes, and the settings of the rendezvous, restarts and logs.

    Attributes:
        program: The program that every process runs.
        num_processes: The number of processes on this machine.
        environ: Environment variables for every process, in addition to those of this process.
        num_nodes: The number of machines, or the maximum number of machines if the number may change while the job runs.
        min_nodes: The minimum number of machines if the number may change while the job runs. None if the number is fixed.
        node_rank: The rank of this machine. If None, the rendezvous assigns the rank.
        rdzv_backend, rdzv_endpoint, rdzv_id: The backend, the endpoint (``host:port``) and the ID of torch's rendezvous. An empty endpoint
            means this machine. An empty ID means a random ID, which works only on a single machine.
        join_timeout: The number of seconds for which this machine waits for the other machines.
        last_call_timeout: The number of seconds for which ``min_nodes`` machines wait for further machines. Used only if the number of
            machines may change.
        max_restarts: The maximum number of times that all processes are restarted after a failure.
        monitor_interval: The number of seconds between two checks of the processes.
        log_dir: The folder for the logs. None means a temporary folder that is kept only after a failure.
        grace_period: The number of seconds between SIGTERM and SIGKILL when the job is told to end.
    """

    program: Program
    num_processes: int
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_nodes: int = 1
    min_nodes: int | None = None
    node_rank: int | None = None
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    join_timeout: int = 600
    last_call_timeout: int = 10
    max_restarts: int = 0
    monitor_interval: float = 0.1
    log_dir: Path | None = None
    grace_period: float = 25.0
