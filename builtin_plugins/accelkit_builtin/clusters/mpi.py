"""MPI launchers: those of Open MPI, MPICH, Intel MPI and MVAPICH2, and other launchers that set the variables of PMI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from accelkit import ClusterDetection, ClusterEnvironment, port_for_job
from accelkit_builtin.clusters.by_hand import raised

_SHARED = ("PMI_RANK", "PMI_SIZE")


class _Dialect(NamedTuple):
    """An MPI launcher, and the names of the environment variables in which it tells each process its rank and the size of the job.

    Attributes:
        launcher: The name of the launcher.
        rank, size: The names of the variables for the global rank and the world size.
        local_rank, local_size: The names of the variables for the local rank and the number of processes on the machine. Not every
            launcher sets these.
        processes_flag: How to set the number of processes on each machine, such as ``mpirun -ppn {}``. ``{}`` stands for the number.
    """

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    processes_flag: str

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of this launcher's variables, without PMI_RANK and PMI_SIZE, which several launchers set."""
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
    """The environment of a process started by mpirun (of Open MPI, MPICH, Intel MPI or MVAPICH2) or by another launcher that uses PMI.

    Protocols: Open MPI's "run-time environment variables" (https://docs.open-mpi.org, OMPI_COMM_WORLD_*), MVAPICH2 (MV2_COMM_WORLD_*),
    MPICH's Hydra (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS), HPE PALS (PMI_RANK, PMI_SIZE, PMI_LOCAL_RANK, PMI_LOCAL_SIZE).
    PMIx itself sets PMIX_RANK, but no variable for the world size. accelkit reads no variable for the rank of the machine, because only
    PALS has one. If the processes are not known to be on one machine, each process reports its machine to the others when it joins the
    process group.
    """

    launcher = "mpirun"
    nodes_flag = "mpirun --host (or -hosts) with {} machines"

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a ``ClusterDetection`` if a variable of an MPI launcher is set, otherwise None. The priority depends on the variable.

        If a variable shows which MPI launcher started this process, the ``ClusterDetection`` ranks above that of SLURM, because the
        launcher may run in a SLURM job. It ranks below that of LSF, because jsrun also sets the variables of MPI. If only PMI_RANK and
        PMI_SIZE are set, it ranks below that of SLURM, because srun also sets PMI_RANK and PMI_SIZE. If only PMIX_RANK is set, it has a
        negative priority and is never used.
        """
        for dialect in _DIALECTS:
            if name := next((name for name in dialect.own_names if environ.get(name)), None):
                reason = f"{name}: {dialect.launcher} started this process"
                return raised(ClusterDetection("mpi", 60, reason), environ, (dialect.rank,), (dialect.size,))
        if name := next((name for name in _SHARED if environ.get(name)), None):
            reason = f"{name}: a launcher that uses PMI started this process"
            return raised(ClusterDetection("mpi", 40, reason), environ, (_PLAIN.rank,), (_PLAIN.size,))
        if environ.get("PMIX_RANK"):
            return ClusterDetection(
                "mpi", -1, "only PMIX_RANK is set, and PMIx does not set a variable for the world size; mpirun of Open MPI does"
            )
        return None

    @property
    def processes_flag(self) -> str:  # type: ignore[override]
        """This launcher's flag for the number of processes on each machine, with ``{}`` in place of the number."""
        return self._dialect.processes_flag

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher started all processes."""
        return True

    @property
    def world_size(self) -> int:
        """Value of OMPI_COMM_WORLD_SIZE, PMI_SIZE or the launcher's equivalent."""
        return self.number(self._dialect.size, least=1)

    @property
    def global_rank(self) -> int:
        """Value of OMPI_COMM_WORLD_RANK, PMI_RANK or the launcher's equivalent."""
        return self.number(self._dialect.rank, below=(self._dialect.size,))

    @property
    def local_rank(self) -> int:
        """Value of OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID or the launcher's equivalent.

        Some launchers set only PMI_RANK and PMI_SIZE. The value is then 0 in a job with one process. In a larger job, the processes work
        out the value when they join the process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        dialect = self._dialect
        if dialect is _PLAIN and self.text(dialect.local_rank) is None:
            return super().local_rank
        return self.number(dialect.local_rank, below=self.local_world_size)

    @property
    def local_world_size(self) -> int:
        """Value of OMPI_COMM_WORLD_LOCAL_SIZE, MPI_LOCALNRANKS or the launcher's equivalent.

        Some launchers set only PMI_RANK and PMI_SIZE. The value is then 1 in a job with one process. In a larger job, the processes work
        out the value when they join the process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        dialect, size = self._dialect, self.world_size
        if dialect is _PLAIN and self.text(dialect.local_size) is None:
            return self.exchanged_value("local_world_size", 1 if size == 1 else None)
        return self.number(dialect.local_size, least=1, below=size + 1)

    @property
    def node_rank(self) -> int:
        """Rank of this machine. No variable is read for this rank.

        The rank is 0 if other variables show that all processes are on one machine. If not, the processes work out the rank when they join
        the process group. OMPI_COMM_WORLD_NODE_RANK is the rank of the process on its machine, not the rank of the machine.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        return self.exchanged_value("node_rank", 0 if self.known("num_nodes") == 1 else None)

    @property
    def num_nodes(self) -> int:
        """Number of machines on which the processes run.

        The number is 1 if the launcher's variables show that all processes are on this machine. If not, it is read from
        OMPI_MCA_orte_num_nodes, which Open MPI 4 sets. Without OMPI_MCA_orte_num_nodes, the processes work out the number when they join
        the process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        if self.known("local_world_size") == self.world_size:
            return 1
        if self.text("OMPI_MCA_orte_num_nodes") is not None:
            return self.number("OMPI_MCA_orte_num_nodes", least=1)
        return self.exchanged_value("num_nodes")

    @property
    def main_address(self) -> str:
        """Value of MASTER_ADDR if set, else 127.0.0.1.

        If MASTER_ADDR is not set and the job may have processes on other machines, reading the value also warns once.
        """
        is_alone = self.known("local_world_size") == self.world_size
        return self.address("MASTER_ADDR", default="127.0.0.1" if is_alone else None)

    @property
    def main_port(self) -> int:
        """Value of MASTER_PORT, else a port derived from PMIX_NAMESPACE (Open MPI's name for this run).

        If neither variable is set, the value is 12910, and reading it warns once.
        """
        run = self.text("PMIX_NAMESPACE")
        return self.port("MASTER_PORT", default=None if run is None else port_for_job(run))

    @property
    def job_id(self) -> str | None:
        """ID of the scheduler's job in which mpirun was called, or None if no scheduler set an ID.

        Value of the first of SLURM_JOB_ID, LSB_JOBID, PBS_JOBID and COBALT_JOBID that is set.
        """
        return self.text("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "COBALT_JOBID")

    @property
    def _dialect(self) -> _Dialect:
        return next((dialect for dialect in _DIALECTS if self.text(*dialect.own_names)), _PLAIN)
