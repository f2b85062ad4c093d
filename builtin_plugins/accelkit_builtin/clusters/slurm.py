"""SLURM: processes that srun started in a job step."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from accelkit import ClusterDetection, ClusterEnvironment, ContradictionError, UnavailableError, UsageError, port_for_job
from accelkit_builtin.clusters.by_hand import raised

_SIZE = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_NODE_LIST = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
_TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # the step IDs of batch scripts, interactive shells and external processes start here
_REQUEUE_SECONDS = 60


class SlurmEnvironment(ClusterEnvironment):
    """The environment of a process that srun started in a step of a SLURM job.

    Protocol: the section "OUTPUT ENVIRONMENT VARIABLES" of https://slurm.schedmd.com/srun.html. The variables of the step take precedence
    over the variables of the job. If SLURM sets a variable for a value, the value is read from this variable and never computed from other
    variables. This environment does not claim the processes of batch scripts and interactive shells, because srun must start the processes
    that train.
    """

    launcher = "srun"
    processes_flag = "--ntasks-per-node={}"
    nodes_flag = "--nodes={}"

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a ``ClusterDetection`` if this process is in a SLURM job, otherwise None.

        In a batch script or an interactive shell, the ``ClusterDetection`` has a negative priority and is never used. Its ``reason``
        says why the process is not claimed.

        If srun started this process, the ``ClusterDetection`` usually ranks below those of mpirun and other launchers that may call srun.
        There are two exceptions:

        - If PMI_RANK and PMI_SIZE are the only signs of MPI, the ``ClusterDetection`` ranks above that of MPI, because srun also sets these
          variables.
        - If the user set torch's variables (RANK, WORLD_SIZE) by hand for the tasks of srun, the ``ClusterDetection`` ranks above that of
          ``torchelastic``.
        """
        if not (environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")):
            return None
        from accelkit_builtin.clusters.slurm_shells import is_typed  # imported here, because most programs do not run in SLURM jobs

        job, step = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID"), environ.get("SLURM_STEP_ID", "")
        special = step.isascii() and step.isdigit() and int(step[:12]) >= _FIRST_SPECIAL_STEP
        if not step or special:
            why = f"this is the sbatch script or the salloc shell of job {job} (no SLURM_STEP_ID of a step); srun starts its processes"
            return ClusterDetection("slurm", -1, why)
        if environ.get("SLURM_PTY_PORT") and (environ.get("SLURM_STEP_NUM_TASKS", "1") == "1" or is_typed(environ.get("SLURM_TASK_PID"))):
            return ClusterDetection(
                "slurm", -1, f"this is an interactive shell of job {job} (SLURM_PTY_PORT, of srun --pty); srun starts its processes"
            )
        claim = ClusterDetection("slurm", 50, f"SLURM_STEP_ID={step} of job {job}: srun started this process")
        return raised(claim, environ, ("SLURM_PROCID",), _SIZE)

    @property
    def creates_processes_externally(self) -> bool:
        """True: srun started all processes."""
        return True

    @property
    def world_size(self) -> int:
        """Number of tasks in the step. If the step is heterogeneous, the tasks in all its components are counted.

        Read from SLURM_STEP_NUM_TASKS, else SLURM_NTASKS, else SLURM_NPROCS.

        Raises:
            ContradictionError: If SLURM_STEP_NUM_TASKS differs from SLURM_NTASKS, or from SLURM_NPROCS if SLURM_NTASKS is not set. The
                cause is usually that the job was submitted from within a step of another job, because sbatch and salloc pass on the
                variables of that step.
        """
        of_step, of_job = self.number(*_SIZE, least=1), self.number(*_SIZE[1:], *_SIZE[:1], least=1)
        if of_step != of_job:
            raise ContradictionError(
                f"SLURM_STEP_NUM_TASKS={of_step} contradicts {self._set(_SIZE[1:])}={of_job}",
                plugin=self.plugin,
                why="they belong to different steps: the job was submitted from within another job and inherited its variables",
                hint="start the program with srun, or unset SLURM_STEP_ID in the batch script if it does not use a step",
            )
        return of_step

    @property
    def global_rank(self) -> int:
        """Value of SLURM_PROCID."""
        return self.number("SLURM_PROCID", below=_SIZE)

    @property
    def local_rank(self) -> int:
        """Value of SLURM_LOCALID."""
        return self.number("SLURM_LOCALID", below=self.local_world_size)

    @property
    def local_world_size(self) -> int:
        """Number of tasks on this node. Read from SLURM_STEP_TASKS_PER_NODE, else SLURM_TASKS_PER_NODE.

        The variable lists the number of tasks on each node: ``2(x3),1`` means 2 tasks on each of the first three nodes, and 1 task on the
        fourth node. If neither variable is set and there is only one node, the value is ``world_size``.

        Raises:
            UsageError: If the list cannot be read.
            ContradictionError: If the list does not match ``num_nodes`` and ``world_size``.
        """
        from accelkit_builtin.clusters.slurm_lists import tasks_on

        written = self.text(*_TASKS)
        if written is None and self.num_nodes == 1:
            return self.world_size
        try:
            here, nodes, total = tasks_on(self.node_rank, written or "")
        except ValueError as error:
            raise self._unreadable(_TASKS, error) from None
        if (nodes, total) != (self.num_nodes, self.world_size):
            raise ContradictionError(
                f"{self._set(_TASKS)}={written} means {total} tasks on {nodes} nodes",
                plugin=self.plugin,
                why=f"this contradicts {self._set(_SIZE)}={self.world_size} and {self._set(_NODES)}={self.num_nodes}",
                hint="start the program with srun, and do not set SLURM_ variables yourself",
            )
        return here

    @property
    def node_rank(self) -> int:
        """Value of SLURM_NODEID."""
        return self.number("SLURM_NODEID", below=_NODES)

    @property
    def num_nodes(self) -> int:
        """Value of SLURM_STEP_NUM_NODES, else SLURM_NNODES, else SLURM_JOB_NUM_NODES."""
        return self.number(*_NODES, least=1)

    @property
    def main_address(self) -> str:
        """Value of MASTER_ADDR if set, else the first node of the step.

        Raises:
            ContradictionError: If MASTER_ADDR is not set, and rank 0 is not certain to be on the first node of the step. This happens if
                this process is rank 0 and runs on another node. It also happens if several nodes are used with
                ``--distribution=arbitrary``, which can place rank 0 on any node.
            UsageError: If MASTER_ADDR is not a host name or address, or if it is not set and the list of nodes cannot be read.
        """
        if self.text("MASTER_ADDR") is not None:
            return self.address("MASTER_ADDR")
        from accelkit_builtin.clusters.slurm_lists import expand_nodes

        written = self.text(*_NODE_LIST)
        try:
            first = next(expand_nodes(written or ""), "")
        except ValueError as error:
            raise self._unreadable(_NODE_LIST, error) from None
        if not first:
            raise self._unreadable(_NODE_LIST, ValueError("it contains no node"))
        here = self.text("SLURMD_NODENAME")
        is_arbitrary = "arbitrary" in (self.text("SLURM_DISTRIBUTION") or "") and self.num_nodes > 1
        if is_arbitrary or (self.global_rank == 0 and here not in (None, first)):
            raise ContradictionError(
                f"rank 0 may not be on {first}, the first node of {self._set(_NODE_LIST)}={written:.200}",
                plugin=self.plugin,
                why="SLURM_DISTRIBUTION=arbitrary" if is_arbitrary else f"rank 0 is on {here}",
                hint="export MASTER_ADDR (rank 0's node) before srun, or omit --distribution=arbitrary",
            )
        return self._host(first, self._set(_NODE_LIST))

    @property
    def main_port(self) -> int:
        """Value of MASTER_PORT if set, else the last of the ports that SLURM reserved for the step (SLURM_STEP_RESV_PORTS).

        Without reserved ports, the port is derived from the job id and the step id.

        Raises:
            UsageError: If MASTER_PORT is set but is not a port, or if it is not set and the values used instead (the list of reserved
                ports, or the job id and the step id) cannot be read.
        """
        if self.text("MASTER_PORT") is not None:
            return self.port("MASTER_PORT")
        reserved = self.text("SLURM_STEP_RESV_PORTS")
        if reserved is not None:
            from accelkit_builtin.clusters.slurm_lists import reserved_ports

            try:
                return reserved_ports(reserved)[-1]  # MPI under srun uses the first ports
            except ValueError as error:
                raise self._unreadable(("SLURM_STEP_RESV_PORTS",), error) from None
        return port_for_job(self.number("SLURM_JOB_ID", "SLURM_JOBID"), self.number("SLURM_STEP_ID", "SLURM_STEPID", default=0))

    @property
    def job_id(self) -> str | None:
        """Id of the job, in the form that scontrol accepts.

        In a job array, the id has the form ``ARRAYJOB_TASK``. In a heterogeneous job, the result is the id of the first component.
        """
        array, task = self.text("SLURM_ARRAY_JOB_ID"), self.text("SLURM_ARRAY_TASK_ID")
        if array and task:
            return f"{array}_{task}"
        return self.text("SLURM_HET_JOB_ID", "SLURM_JOB_ID_HET_GROUP_0", "SLURM_JOB_ID", "SLURM_JOBID")

    @property
    def restart_count(self) -> int:
        """Value of SLURM_RESTART_COUNT if set, else 0."""
        return self.number("SLURM_RESTART_COUNT", default=0)

    def requeue(self) -> bool:
        """Put this job back into the queue with ``scontrol requeue``, and return True.

        SLURM then ends the job's processes, and can start the job again after a delay (two minutes by default).

        Raises:
            UnavailableError: If scontrol is missing, does not finish within 60 seconds, or refuses to requeue the job. scontrol requeues
                only jobs that were submitted with sbatch.
        """
        command = ["scontrol", "requeue", self.job_id or ""]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_REQUEUE_SECONDS, env=dict(self.environ))
            output, is_done = (result.stderr or result.stdout).strip(), result.returncode == 0
        except (OSError, subprocess.TimeoutExpired) as error:
            output, is_done = str(error), False
        if not is_done:
            raise UnavailableError(
                f"SLURM did not requeue job {self.job_id}",
                plugin=self.plugin,
                why=f"{' '.join(command)}: {output}",
                hint="submit the job with sbatch --requeue; a job of salloc or srun has no script that SLURM could run again",
            )
        return True

    def _unreadable(self, names: tuple[str, ...], error: ValueError) -> UsageError:
        value = self.text(*names)
        what = f"{self._set(names)}={value:.120} cannot be read" if value else f"none of {', '.join(names)} is set"
        why = str(error) if value else f"the cluster environment {self.name!r} needs one of them"
        hint = "start the program with srun, and do not set SLURM_ variables yourself"
        return UsageError(what, plugin=self.plugin, why=why, hint=hint)
