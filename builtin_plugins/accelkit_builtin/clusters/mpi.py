"""MPI launchers: mpirun of Open MPI and MPICH (Intel MPI, MVAPICH2), and what else speaks PMI."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from accelkit import ClusterEnvironment, Detection, UsageError, job_port

_SHARED = ("PMI_RANK", "PMI_SIZE")


@dataclasses.dataclass(frozen=True, slots=True)
class _Dialect:
    """What one launcher calls the four numbers; not all give the last two."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    processes_flag: str

    @property
    def own_names(self) -> tuple[str, ...]:
        """The variables that no other launcher sets."""
        return tuple(name for name in (self.local_rank, self.local_size, self.rank, self.size) if name not in _SHARED)


_DIALECTS = (
    _Dialect(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "mpirun --map-by ppr:{}:node",
    ),
    _Dialect(
        "MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
        "mpirun_rsh, with each host named {} times",
    ),
    _Dialect("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpirun -ppn {}"),
    _Dialect("PALS", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "mpiexec --ppn {}"),
)
_PLAIN = _Dialect("PMI", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "{} processes on each machine")


class MPIEnvironment(ClusterEnvironment):
    """MPI: mpirun of Open MPI, MPICH, Intel MPI or MVAPICH2, or another launcher that speaks PMI, started this process.

    Protocols: Open MPI's "run-time environment variables" (https://docs.open-mpi.org, OMPI_COMM_WORLD_*), MPICH's Hydra (PMI_RANK,
    PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS), HPE PALS (PMI_LOCAL_RANK, PMI_LOCAL_SIZE). PMIx alone puts the rank into the environment,
    not the size. None of them numbers the machines.
    """

    launcher = "mpirun"
    nodes_flag = "mpirun --host (or -hosts) naming {} machines"

    def detect_cluster(self, environ: Mapping[str, str]) -> Detection | None:
        """A launcher of MPI's own above SLURM and LSF, whose jobs it runs in; plain PMI below SLURM, which speaks it too."""
        for dialect in _DIALECTS:
            if name := next((name for name in dialect.own_names if environ.get(name)), None):
                return Detection("mpi", 60, f"{name}: {dialect.launcher} started this process")
        if name := next((name for name in _SHARED if environ.get(name)), None):
            return Detection("mpi", 40, f"{name}: a launcher that speaks PMI started this process")
        if environ.get("PMIX_RANK"):
            return Detection("mpi", -1, "PMIX_RANK alone: PMIx puts no world size into the environment; mpirun of Open MPI does")
        return None

    @property
    def processes_flag(self) -> str:  # type: ignore[override]
        """That of the launcher that was recognised."""
        return self._dialect.processes_flag

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher started all of them."""
        return True

    @property
    def world_size(self) -> int:
        """OMPI_COMM_WORLD_SIZE, PMI_SIZE, or as the launcher calls it."""
        return self.number(self._dialect.size, least=1)

    @property
    def global_rank(self) -> int:
        """OMPI_COMM_WORLD_RANK, PMI_RANK, or as the launcher calls it."""
        return self.number(self._dialect.rank, below=(self._dialect.size,))

    @property
    def local_rank(self) -> int:
        """OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID, PMI_LOCAL_RANK. Plain PMI gives none: then all are taken to be on this machine."""
        return self.number(self._dialect.local_rank, below=self.local_world_size, default=self._default(self.global_rank))

    @property
    def local_world_size(self) -> int:
        """OMPI_COMM_WORLD_LOCAL_SIZE, MPI_LOCALNRANKS, PMI_LOCAL_SIZE. Plain PMI gives none: then all are taken to be on this machine."""
        size = self.world_size
        return self.number(self._dialect.local_size, least=1, below=size + 1, default=self._default(size))

    @property
    def node_rank(self) -> int:
        """Derived: no launcher says it (OMPI_COMM_WORLD_NODE_RANK is the rank on the machine).

        Raises:
            UsageError: If ranks were not placed machine by machine, as many on each, as mpirun does by default.
        """
        rank, here = self.global_rank, self.local_world_size
        if self.local_rank != rank % here or here * self.num_nodes != self.world_size:
            raise UsageError(
                f"the number of this machine is not known: rank {rank} has local rank {self.local_rank} of {here}",
                plugin=self.plugin,
                why="MPI does not number machines, and ranks were not placed machine by machine, as many on each",
                hint=f"start the program with {self.processes_flag.format(here)}",
            )
        return rank // here

    @property
    def num_nodes(self) -> int:
        """OMPI_MCA_orte_num_nodes of Open MPI 4; else derived from the number of processes on this machine."""
        derived = -(-self.world_size // self.local_world_size)
        return self.number("OMPI_MCA_orte_num_nodes", least=1, default=derived) if derived > 1 else 1

    @property
    def main_address(self) -> str:
        """MASTER_ADDR if set; 127.0.0.1 where all ranks are on this machine, and (with one warning) where they are not."""
        is_alone = self.local_world_size == self.world_size
        return self.address("MASTER_ADDR", default="127.0.0.1" if is_alone else None)

    @property
    def main_port(self) -> int:
        """MASTER_PORT if set, else one made of PMIX_NAMESPACE (Open MPI's name for this run), else 12910 with one warning."""
        run = self.text("PMIX_NAMESPACE")
        return self.port("MASTER_PORT", default=None if run is None else job_port(run))

    @property
    def job_id(self) -> str | None:
        """Of the scheduler in whose job mpirun was called: SLURM_JOB_ID, LSB_JOBID, PBS_JOBID, COBALT_JOBID."""
        return self.text("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "COBALT_JOBID")

    @property
    def _dialect(self) -> _Dialect:
        return next((dialect for dialect in _DIALECTS if self.text(*dialect.own_names)), _PLAIN)

    def _default(self, value: int) -> int | None:
        return value if self._dialect is _PLAIN else None
