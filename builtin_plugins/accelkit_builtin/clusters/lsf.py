"""IBM Spectrum LSF: processes started by jsrun."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from accelkit import ClusterDetection, ClusterEnvironment, UsageError, port_for_job
from accelkit_builtin.clusters.by_hand import raised

_SIZE = ("JSM_NAMESPACE_SIZE",)
_LOCAL_SIZE = ("JSM_NAMESPACE_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")


class LSFEnvironment(ClusterEnvironment):
    """The environment of a process that jsrun started in a job of IBM Spectrum LSF.

    Protocol: the section "Environment variables set for job execution" of IBM's LSF reference (LSB_JOBID, LSB_JOBINDEX,
    LSB_DJOB_RANKFILE, LSB_RESTART), and jsrun's variables JSM_NAMESPACE_RANK, _SIZE, _LOCAL_RANK and _LOCAL_SIZE. The rank file has one
    line per slot, and the first line is that of the launch node. jsrun may use fewer hosts than the file lists.
    """

    launcher = "jsrun"
    processes_flag = "jsrun --rs_per_host {} --tasks_per_rs 1"
    nodes_flag = "bsub -nnodes {}"

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a ``ClusterDetection`` if this process is in an LSF job, otherwise None.

        If jsrun started this process, the ``ClusterDetection`` ranks above that of MPI, because jsrun also sets the variables of MPI.
        Otherwise, the ``ClusterDetection`` has a negative priority and is never used. Its ``reason`` says why the process is
        not claimed.
        """
        job = environ.get("LSB_JOBID")
        if not job:
            return None
        if any(environ.get(name) for name in ("JSM_NAMESPACE_RANK", *_SIZE)):
            reason = f"LSB_JOBID={job} and JSM_NAMESPACE_RANK: jsrun started this process"
            return raised(ClusterDetection("lsf", 70, reason), environ, ("JSM_NAMESPACE_RANK",), _SIZE)
        return ClusterDetection(
            "lsf", -1, f"this is the script of job {job} (LSB_JOBID without JSM_NAMESPACE_RANK); jsrun or mpirun starts its processes"
        )

    @property
    def creates_processes_externally(self) -> bool:
        """True: jsrun started all processes."""
        return True

    @property
    def world_size(self) -> int:
        """Value of JSM_NAMESPACE_SIZE."""
        return self.number(*_SIZE, least=1)

    @property
    def global_rank(self) -> int:
        """Value of JSM_NAMESPACE_RANK."""
        return self.number("JSM_NAMESPACE_RANK", below=_SIZE)

    @property
    def local_rank(self) -> int:
        """Value of JSM_NAMESPACE_LOCAL_RANK."""
        return self.number("JSM_NAMESPACE_LOCAL_RANK", below=self.known("local_world_size") or self.world_size)

    @property
    def local_world_size(self) -> int:
        """Value of JSM_NAMESPACE_LOCAL_SIZE, else OMPI_COMM_WORLD_LOCAL_SIZE.

        Without these variables, the value is ``world_size`` if the job has one process or the rank file lists one host after the launch
        node. In any other case, the processes work out the value when they join the process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        size = self.world_size
        if self.text(*_LOCAL_SIZE) is not None:
            return self.number(*_LOCAL_SIZE, least=1, below=size + 1)
        return self.exchanged_value("local_world_size", size if size == 1 or len(self._hosts()) == 1 else None)

    @property
    def node_rank(self) -> int:
        """Rank of this host among the hosts on which the processes run.

        The rank is 0 if all processes run on one host. If they are known to run on all hosts that the rank file lists after the launch
        node, the rank is the position of this host among those hosts. In any other case, the processes work out the rank when they join the
        process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
            UsageError: If this host is not in the rank file.
        """
        nodes = self.known("num_nodes")
        if self.placement is not None or nodes == 1 or nodes != len(self._hosts()):
            return self.exchanged_value("node_rank", 0 if nodes == 1 else None)
        hosts = self._hosts()
        here = socket.gethostname()
        for wanted in (here, here.partition(".")[0]):
            for index, host in enumerate(hosts):
                if wanted in (host, host.partition(".")[0]):
                    return index
        raise UsageError(
            f"the host {here} is not one of the hosts of the job",
            plugin=self.plugin,
            why=f"LSB_DJOB_RANKFILE={self.text('LSB_DJOB_RANKFILE')} lists {', '.join(hosts[:8])}",
            hint="start the program with jsrun within the job",
        )

    @property
    def num_nodes(self) -> int:
        """Number of hosts on which the processes run.

        This number may be smaller than the number of hosts in the rank file, which lists all allocated hosts. If ``local_world_size`` is
        known, the number is known from the start in two cases:

        - It is 1 if ``local_world_size`` equals ``world_size``.
        - It is 2 if ``local_world_size`` is smaller than ``world_size`` and the rank file lists two hosts after the launch node.

        Otherwise, the processes work out the number when they join the process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        local = self.known("local_world_size")
        if local == self.world_size:
            return 1
        return self.exchanged_value("num_nodes", 2 if local is not None and len(self._hosts()) == 2 else None)

    @property
    def main_address(self) -> str:
        """Value of MASTER_ADDR if set, else the first host that the rank file lists after the launch node."""
        return self.address("MASTER_ADDR") if self.text("MASTER_ADDR") is not None else self._host(self._hosts()[0], "LSB_DJOB_RANKFILE")

    @property
    def main_port(self) -> int:
        """Value of MASTER_PORT if set, else a port derived from LSB_JOBID and, in a job array, LSB_JOBINDEX."""
        return self.port("MASTER_PORT", default=port_for_job(self.number("LSB_JOBID"), self.number("LSB_JOBINDEX", default=0)))

    @property
    def job_id(self) -> str | None:
        """Value of LSB_JOBID. In a job array, it is followed by the index, as in ``123[4]``."""
        job, index = self.text("LSB_JOBID"), self.text("LSB_JOBINDEX")
        return f"{job}[{index}]" if job and index not in (None, "0") else job

    @property
    def restart_count(self) -> int:
        """1 if LSB_RESTART is ``Y``, else 0. LSF reports that the job was restarted, but not how often."""
        return int(self.text("LSB_RESTART") == "Y")

    def _hosts(self) -> Sequence[str]:
        """Return the distinct hosts that jsrun may use, in the order of the rank file."""
        path = self.text("LSB_DJOB_RANKFILE")
        try:
            lines = Path(path or "").read_text("utf-8", "replace").split() if path else []
        except (OSError, ValueError) as error:
            raise self._error(f"LSB_DJOB_RANKFILE={path!r:.120} cannot be read: {error}", "reads the hosts of the job from it") from error
        if not lines:
            what = f"LSB_DJOB_RANKFILE={path} is empty" if path else "LSB_DJOB_RANKFILE is not set"
            raise self._error(what, "reads the file with the hosts of the job")
        return list(dict.fromkeys(lines[1:] or lines))
