"""torchrun and every launcher that sets torch.distributed's variables, as DeepSpeed's."""

from __future__ import annotations

from collections.abc import Mapping

from accelkit import ClusterEnvironment, Detection

_CONVENTION = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_SIZE, _LOCAL_SIZE = ("WORLD_SIZE",), ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
_NODES = ("GROUP_WORLD_SIZE", "CROSS_SIZE", "NNODES")


class TorchElasticEnvironment(ClusterEnvironment):
    """torchrun, accelkit launch, or another launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    Protocol: "Environment Variables" of https://docs.pytorch.org/docs/stable/elastic/run.html. DeepSpeed's launcher says LOCAL_SIZE,
    CROSS_RANK and CROSS_SIZE for LOCAL_WORLD_SIZE, GROUP_RANK and GROUP_WORLD_SIZE.
    """

    launcher = "torchrun or accelkit launch"
    processes_flag = "--nproc-per-node={}"
    nodes_flag = "--nnodes={}"

    def detect_cluster(self, environ: Mapping[str, str]) -> Detection | None:
        """Above all others: torchrun runs inside their jobs, and their variables then describe its agents."""
        if environ.get("TORCHELASTIC_RUN_ID"):
            return Detection("torchelastic", 100, "TORCHELASTIC_RUN_ID: torchrun started this process")
        if all(environ.get(name) for name in _CONVENTION):
            return Detection("torchelastic", 80, f"{', '.join(_CONVENTION)}: a launcher set torch.distributed's variables")
        return None

    @property
    def creates_processes_externally(self) -> bool:
        """True: the agent started all of them."""
        return True

    @property
    def world_size(self) -> int:
        """WORLD_SIZE."""
        return self.number(*_SIZE, least=1)

    @property
    def global_rank(self) -> int:
        """RANK."""
        return self.number("RANK", below=_SIZE)

    @property
    def local_rank(self) -> int:
        """LOCAL_RANK."""
        return self.number("LOCAL_RANK", below=self.local_world_size)

    @property
    def local_world_size(self) -> int:
        """LOCAL_WORLD_SIZE, or LOCAL_SIZE. Where a launcher gives neither: as many on each machine, whose number must then be known."""
        size, derived = self.world_size, None
        if self.text(*_NODES) is not None:
            derived = max(1, size // self.number(*_NODES, least=1))
        elif self.text("LOCAL_RANK") == self.text("RANK"):
            derived = size
        return self.number(*_LOCAL_SIZE, least=1, below=size + 1, default=derived)

    @property
    def node_rank(self) -> int:
        """GROUP_RANK, CROSS_RANK or NODE_RANK; else by the rank, as many processes on each machine."""
        derived = min(self.global_rank // self.local_world_size, self.num_nodes - 1)
        return self.number("GROUP_RANK", "CROSS_RANK", "NODE_RANK", default=derived, below=self.num_nodes)

    @property
    def num_nodes(self) -> int:
        """GROUP_WORLD_SIZE (the agents), CROSS_SIZE or NNODES; else as many processes on each machine."""
        return self.number(*_NODES, least=1, default=-(-self.world_size // self.local_world_size))

    @property
    def main_address(self) -> str:
        """MASTER_ADDR."""
        return self.address("MASTER_ADDR")

    @property
    def main_port(self) -> int:
        """MASTER_PORT. The agent of rank 0 found it free."""
        return self.port("MASTER_PORT")

    @property
    def job_id(self) -> str | None:
        """TORCHELASTIC_RUN_ID, unless it is torchrun's ``none``."""
        run = self.text("TORCHELASTIC_RUN_ID")
        return None if run == "none" else run

    @property
    def restart_count(self) -> int:
        """TORCHELASTIC_RESTART_COUNT: of this machine's agent. Agents of one job may have counted differently."""
        return self.number("TORCHELASTIC_RESTART_COUNT", default=0)
