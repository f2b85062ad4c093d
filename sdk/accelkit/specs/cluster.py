"""The cluster environment specification: where a process learns its rank, world size and rendezvous address."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from accelkit.errors import AccelkitError, ContradictionError, NotJoinedError, UnsupportedError
from accelkit.specs.env_reader import DEFAULT_PORT, LOOPBACK, Variables
from accelkit.specs.hooks import hookimpl
from accelkit.specs.placement import PLACEMENT, Place, Placement, placements, this_machine
from accelkit.types import Detection


class ClusterEnvironment(Variables):
    """What a launcher or scheduler tells a process. Reading it changes nothing in ``environ``.

    The defaults describe one process on one machine, that nobody else launched. A subclass reads variables with ``number``, ``address``,
    ``port`` and ``text``, whose errors name the variable and its value. ``local_rank``, ``local_world_size``, ``node_rank`` and
    ``num_nodes`` may be what no variable says: then it returns ``told(name)``, and guesses nothing.

    Args:
        environ: The environment variables to read; this process's own by default.

    Attributes:
        processes_flag, nodes_flag: How the user tells the launcher how many processes to start on a machine, and on how many
            machines; ``{}`` stands for the number. Errors of ``validate_settings`` show them.
        placement: What the processes told each other when they joined; None before, and where they had nothing to ask.
    """

    processes_flag: str = "{} processes on each machine"
    nodes_flag: str = "{} machines"
    placement: Placement | None = None

    @hookimpl
    def detect_cluster(self, environ: Mapping[str, str]) -> Detection | None:
        """This environment's claim on a process with these variables, or None if it sees nothing of its own. The highest rank wins.

        A rank below 0 is no claim: it says why, though some of its variables are there, this is not one of its processes.
        """
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
        """This process's rank on its machine, from 0 to ``local_world_size - 1``."""
        alone = 0 if self.known("local_world_size") == 1 else None
        return self.told("local_rank", self.global_rank if self.known("num_nodes") == 1 else alone)

    @property
    def local_world_size(self) -> int:
        """Number of the job's processes on this machine. Machines may differ. By default, as many on each, if that comes out even."""
        size, nodes = self.world_size, 1 if self.world_size == 1 else self.num_nodes
        return self.told("local_world_size", size // nodes if size % nodes == 0 else None)

    @property
    def node_rank(self) -> int:
        """This machine's rank, from 0 to ``num_nodes - 1``."""
        return self.told("node_rank", 0 if self.known("num_nodes") == 1 else None)

    @property
    def num_nodes(self) -> int:
        """Number of machines of the job. By default 1 where all of its processes are on this machine."""
        is_said = type(self).local_world_size is not ClusterEnvironment.local_world_size
        here = self.known("local_world_size") if is_said else None
        return self.told("num_nodes", 1 if self.world_size in (1, here) else None)

    @property
    def main_address(self) -> str:
        """Address of the rendezvous: rank 0's machine. An IPv6 address has no brackets."""
        return LOOPBACK

    @property
    def main_port(self) -> int:
        """TCP port of the rendezvous, the same on every process, and not that of another job on rank 0's machine."""
        return DEFAULT_PORT

    @property
    def job_id(self) -> str | None:
        """The scheduler's name for the job, as its own commands take it."""
        return None

    @property
    def restart_count(self) -> int:
        """How often the job was started again."""
        return 0

    def told(self, name: str, default: int | None = None) -> int:
        """What the processes told each other when they joined.

        Args:
            name: ``local_rank``, ``local_world_size``, ``node_rank`` or ``num_nodes``.
            default: What is certain before; None if nothing is.

        Raises:
            NotJoinedError: If they have not joined, and there is no default.
        """
        if self.placement is not None:
            return int(getattr(self.placement, name))
        if default is not None:
            return default
        raise NotJoinedError(
            f"{name} is not known before the processes of the job join",
            plugin=self.plugin,
            why=f"no variable says it; the cluster environment {self.name!r} knows it once they have told each other where they run",
            hint="ask for it after the first use of Runtime.device, or start the program with accelkit launch, which says it",
        )

    def known(self, name: str) -> int | None:
        """The property of this name, or None where it is not known before the processes join."""
        try:
            return int(getattr(self, name))
        except NotJoinedError:
            return None

    def has_to_ask(self) -> bool:
        """Whether the processes of the job have to tell each other on which machine they are. The same on all of them."""
        for name in PLACEMENT if self.placement is None else ():
            with contextlib.suppress(AccelkitError):  # another error than that it is not known
                if self.known(name) is None:
                    return True
        return False

    def place(self) -> Place:
        """What this process tells the others of itself."""
        host, machine = this_machine()
        said: list[int | None] = []
        for name in PLACEMENT:
            try:
                said.append(self.known(name))
            except AccelkitError:  # a machine that the scheduler did not name is told apart by its own name
                said.append(None)
        return Place(host, machine, *said)

    def learn(self, places: Sequence[Place]) -> None:
        """Take what all processes told, by rank.

        Raises:
            ContradictionError: If it cannot be.
        """
        self.placement = placements(places, self.plugin, self.launcher)[self.global_rank]

    def validate_settings(self, num_devices: int | None, num_nodes: int | None) -> None:
        """Compare what the user said with what was launched.

        Args:
            num_devices: Devices on each machine; None if the user did not say.
            num_nodes: Machines of the job; None if the user did not say.

        Raises:
            ContradictionError: If these do not fit, with the flag of the launcher to change.
        """
        if not self.creates_processes_externally:
            return
        nodes, here = self.known("num_nodes"), self.known("local_world_size")
        if None not in (num_nodes, nodes) and num_nodes != nodes:
            raise self._contradiction(f"num_nodes={num_nodes}", f"{nodes} machine(s)", self.nodes_flag.format(num_nodes), "num_nodes=")
        if num_devices is None:
            return
        said, flag = f"devices={num_devices} on each machine", self.processes_flag.format(num_devices)
        if here not in (None, num_devices):
            raise self._contradiction(said, f"{here} process(es) on this machine", flag, "devices=")
        nodes = num_nodes if nodes is None else nodes
        if nodes is not None and num_devices * nodes != self.world_size:
            there = f"{self.world_size} processes on {nodes} machines, not as many on each"
            raise self._contradiction(said, there, flag, "devices=")

    @hookimpl(trylast=True)
    def requeue(self) -> bool | None:
        """Put the job back into the scheduler's queue, to run again from the start. Called on one process of the job.

        Returns:
            True if the scheduler took it.

        Raises:
            UnsupportedError: If this environment cannot, as by default.
        """
        raise UnsupportedError(
            f"the cluster environment {self.name!r} cannot put a job back into a queue",
            plugin=self.plugin,
            why="what started this job has no queue, or its environment does not implement requeue()",
            hint="leave requeue out and start the job again, or choose another environment with ACCELKIT_CLUSTER",
        )

    def _contradiction(self, said: str, there: str, flag: str, argument: str) -> ContradictionError:
        return ContradictionError(
            f"{said} was asked for, and {there} of this job were started",
            plugin=self.plugin,
            why=f"the cluster environment {self.name!r} says so",
            hint=f"start it with {flag}, or leave {argument} out",
        )

    def __repr__(self) -> str:
        return f"<cluster environment {self.name or type(self).__name__}>"
