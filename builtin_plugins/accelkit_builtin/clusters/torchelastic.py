"""torchrun and all other launchers that set the variables of torch.distributed, such as the launcher of DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping

from accelkit import ClusterDetection, ClusterEnvironment
from accelkit_builtin.clusters.by_hand import TORCH

_SIZE, _LOCAL_SIZE = ("WORLD_SIZE",), ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
_NODE, _NODES = ("GROUP_RANK", "CROSS_RANK", "NODE_RANK"), ("GROUP_WORLD_SIZE", "CROSS_SIZE", "NNODES")


class TorchElasticEnvironment(ClusterEnvironment):
    """The environment of a process started by torchrun, by accelkit launch or by any other launcher that sets torch's variables.

    These variables are RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    Protocol: the section "Environment Variables" of https://docs.pytorch.org/docs/stable/elastic/run.html. DeepSpeed's launcher sets
    LOCAL_SIZE, CROSS_RANK and CROSS_SIZE instead of LOCAL_WORLD_SIZE, GROUP_RANK and GROUP_WORLD_SIZE. If the variables do not give all
    ranks and sizes, the processes tell each other which machines they run on. They do so when they join the process group. They also do so
    if TORCHELASTIC_RUN_ID is not set, because the variables may then have been set by hand.
    """

    launcher = "torchrun or accelkit launch"
    processes_flag = "--nproc-per-node={}"
    nodes_flag = "--nnodes={}"

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a claim (a ``ClusterDetection``) if a launcher set torch.distributed's variables.

        If TORCHELASTIC_RUN_ID is set, torchrun or accelkit launch started this process, and the claim ranks above all other claims. It does
        so even if another launcher started torchrun, because the variables of the other launcher then describe torchrun's agents and not
        this process.

        If TORCHELASTIC_RUN_ID is not set, the claim ranks below the claim of Ray, because Ray may have set torch's variables. If a user set
        torch's variables by hand in processes that srun, jsrun or mpirun started, the claim also ranks below the claim of that launcher
        (see ``by_hand``).
        """
        if environ.get("TORCHELASTIC_RUN_ID"):
            return ClusterDetection("torchelastic", 100, "TORCHELASTIC_RUN_ID: torchrun started this process")
        if all(environ.get(name) for name in TORCH):
            return ClusterDetection("torchelastic", 80, f"{', '.join(TORCH)}: a launcher set the variables of torch.distributed")
        return None

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher started all processes."""
        return True

    @property
    def world_size(self) -> int:
        """Value of WORLD_SIZE."""
        return self.number(*_SIZE, least=1)

    @property
    def global_rank(self) -> int:
        """Value of RANK."""
        return self.number("RANK", below=_SIZE)

    @property
    def local_rank(self) -> int:
        """Value of LOCAL_RANK."""
        return self.number("LOCAL_RANK", below=self.known("local_world_size") or self.world_size)

    @property
    def local_world_size(self) -> int:
        """Value of LOCAL_WORLD_SIZE or LOCAL_SIZE.

        Without these variables, the value is ``world_size`` if there is one machine, and 1 if there are as many machines as processes. In
        any other case, the processes work out the value when they join the process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        size = self.world_size
        if self.text(*_LOCAL_SIZE) is not None:
            return self.number(*_LOCAL_SIZE, least=1, below=size + 1)
        nodes = self.number(*_NODES, least=1, default=1 if size == 1 else 0)
        return self.exchanged_value("local_world_size", size if nodes == 1 else 1 if nodes >= size else None)

    @property
    def node_rank(self) -> int:
        """Value of GROUP_RANK, CROSS_RANK or NODE_RANK.

        Without these variables, the value is 0 if other variables show that there is only one machine. Otherwise, the processes work
        out the value when they join the process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        nodes = self.known("num_nodes")
        if self.text(*_NODE) is not None:
            return self.number(*_NODE, below=nodes or self.world_size)
        return self.exchanged_value("node_rank", 0 if nodes == 1 else None)

    @property
    def num_nodes(self) -> int:
        """Value of GROUP_WORLD_SIZE (the number of agents), CROSS_SIZE or NNODES.

        Without these variables, the value is 1 if other variables show that all processes are on this machine. If they do not, the
        processes work out the value when they join the process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        if self.text(*_NODES) is not None:
            return self.number(*_NODES, least=1)
        size = self.world_size
        return self.exchanged_value("num_nodes", 1 if self.number(*_LOCAL_SIZE, least=1, below=size + 1, default=1) == size else None)

    def needs_placement_exchange(self) -> bool:
        """Return whether the processes have to tell each other where they run.

        The result is False for a job with one process, and after the exchange. Otherwise, it is True if the environment variables of this
        process do not give all ranks and sizes, or if TORCHELASTIC_RUN_ID is not set. Without TORCHELASTIC_RUN_ID, the other variables may
        have been set by hand, and a process on another machine may lack variables that this process has.
        """
        return (
            self.placement is None and self.world_size > 1 and (super().needs_placement_exchange() or not self.text("TORCHELASTIC_RUN_ID"))
        )

    @property
    def main_address(self) -> str:
        """Value of MASTER_ADDR."""
        return self.address("MASTER_ADDR")

    @property
    def main_port(self) -> int:
        """Value of MASTER_PORT, which the launcher or the user chose."""
        return self.port("MASTER_PORT")

    @property
    def job_id(self) -> str | None:
        """Value of TORCHELASTIC_RUN_ID, or None if it is ``none``, torchrun's default."""
        run = self.text("TORCHELASTIC_RUN_ID")
        return None if run == "none" else run

    @property
    def restart_count(self) -> int:
        """Value of TORCHELASTIC_RESTART_COUNT if set, else 0. Each agent counts its own restarts, so machines may have different values."""
        return self.number("TORCHELASTIC_RESTART_COUNT", default=0)
