"""The cluster environment specification: how a process learns its rank, the world size and the rendezvous address."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from accelkit.errors import AccelkitError, ContradictionError, UnknownPlacementError, UnsupportedError
from accelkit.job_types import ClusterDetection
from accelkit.specs.env_reader import DEFAULT_PORT, LOOPBACK, Variables
from accelkit.specs.hooks import hookimpl

if TYPE_CHECKING:
    from accelkit.specs.process_placement import Place, Placement

PLACEMENT = ("local_rank", "local_world_size", "node_rank", "num_nodes")
"""The properties of a cluster environment that the processes can work out if each sends its ``Place`` to the others."""


class ClusterEnvironment(Variables):
    """The information that a launcher or scheduler gives to a process. Reading it never changes ``environ``.

    The defaults describe a single process that no launcher started. A subclass reads variables with the methods ``number``,
    ``address``, ``port`` and ``text``. The errors of these methods name the variable and its value. If no variable gives ``local_rank``,
    ``local_world_size``, ``node_rank`` or ``num_nodes``, the property does not guess: it returns ``exchanged_value(name)``, which raises
    UnknownPlacementError until the processes join the process group.

    Args:
        environ: The environment variables to read. The default is the environment of this process.

    Attributes:
        processes_flag: The launcher's flag for the number of processes on each machine, with ``{}`` in place of the number. Shown in
            the errors of ``validate_settings``.
        nodes_flag: The launcher's flag for the number of machines, with ``{}`` in place of the number. Also shown in the errors of
            ``validate_settings``.
        preemption_poll_seconds: Seconds between two calls to ``is_preempted``. Ignored if ``is_preempted`` is not overridden.
        placement: The placement of this process, which is worked out when the processes join the process group. None before they join.
            It stays None if no value has to be exchanged.
    """

    processes_flag: str = "{} processes on each machine"
    nodes_flag: str = "{} machines"
    preemption_poll_seconds: float = 5.0
    placement: Placement | None = None

    @hookimpl
    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a ``ClusterDetection`` if ``environ`` has variables of this cluster environment, otherwise None.

        The ``ClusterDetection`` with the highest priority is used. A ``ClusterDetection`` with a negative priority is never used: it says
        that the process does not belong to this cluster environment, although some of the variables of the cluster environment are set. Its
        ``reason`` explains why.

        For detection, accelkit calls this method only on the built-in cluster environments. To have a third-party cluster environment
        detected, users enable a hook plugin that implements the hook ``detect_cluster``. The hook may call this method. Without a hook
        plugin, users select a third-party cluster environment by name.
        """
        return None

    @property
    def creates_processes_externally(self) -> bool:
        """Whether an external launcher (torchrun, srun, mpirun) starts the processes. The default is False.

        If False, accelkit selects one device unless the user requests others, and ``validate_settings`` does nothing.
        """
        return False

    @property
    def world_size(self) -> int:
        """Number of processes in the job."""
        return 1

    @property
    def global_rank(self) -> int:
        """Rank of this process, from 0 to ``world_size - 1``."""
        return 0

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine, from 0 to ``local_world_size - 1``."""
        alone = 0 if self.known("local_world_size") == 1 else None
        return self.exchanged_value("local_rank", self.global_rank if self.known("num_nodes") == 1 else alone)

    @property
    def local_world_size(self) -> int:
        """Number of the job's processes on this machine. It may differ between machines.

        The default divides the processes equally among the machines if ``world_size`` is a multiple of ``num_nodes``. Otherwise, it is
        ``exchanged_value("local_world_size")``.
        """
        size, nodes = self.world_size, 1 if self.world_size == 1 else self.num_nodes
        return self.exchanged_value("local_world_size", size // nodes if size % nodes == 0 else None)

    @property
    def node_rank(self) -> int:
        """Rank of this machine, from 0 to ``num_nodes - 1``."""
        return self.exchanged_value("node_rank", 0 if self.known("num_nodes") == 1 else None)

    @property
    def num_nodes(self) -> int:
        """Number of machines in the job.

        The default is 1 if all processes are known to be on this machine. Otherwise, it is ``exchanged_value("num_nodes")``.
        """
        is_said = type(self).local_world_size is not ClusterEnvironment.local_world_size
        here = self.known("local_world_size") if is_said else None
        return self.exchanged_value("num_nodes", 1 if self.world_size in (1, here) else None)

    @property
    def main_address(self) -> str:
        """Host name or IP address of the rendezvous, on the machine of rank 0. An IPv6 address is written without brackets.

        The default is 127.0.0.1.
        """
        return LOOPBACK

    @property
    def main_port(self) -> int:
        """TCP port of the rendezvous. It must be the same on every process, and no other job on rank 0's machine may use it.

        The default is 12910.
        """
        return DEFAULT_PORT

    @property
    def job_id(self) -> str | None:
        """The scheduler's identifier of the job, in the form that the scheduler's commands accept. None if the job has no identifier."""
        return None

    @property
    def restart_count(self) -> int:
        """Number of times that the job was restarted."""
        return 0

    def exchanged_value(self, name: str, default: int | None = None) -> int:
        """Return a value of ``placement``, which is worked out when the processes join the process group.

        Args:
            name: ``local_rank``, ``local_world_size``, ``node_rank`` or ``num_nodes``.
            default: The value to return while ``placement`` is None. Pass None if the value is not certain before the processes join.

        Raises:
            UnknownPlacementError: If both ``placement`` and ``default`` are None.
        """
        if self.placement is not None:
            return int(getattr(self.placement, name))
        if default is not None:
            return default
        raise UnknownPlacementError(
            f"{name} is not known before the processes of the job join",
            plugin=self.plugin,
            why=f"no variable gives it; under the cluster environment {self.name!r} the processes work it out when they join",
            hint="read it after the first use of Runtime.device, or start the program with accelkit launch, which sets it",
        )

    def known(self, name: str) -> int | None:
        """Return the value of the property called ``name``, or None if the processes must join the process group to learn it."""
        try:
            return int(getattr(self, name))
        except UnknownPlacementError:
            return None

    def needs_placement_exchange(self) -> bool:
        """Return whether some properties are known only after the processes have told each other where they run (see ``place``).

        The properties are ``local_rank``, ``local_world_size``, ``node_rank`` and ``num_nodes``. The result must be the same on all
        processes, because they wait for each other in the exchange.
        """
        for name in PLACEMENT if self.placement is None else ():
            with contextlib.suppress(AccelkitError):  # an error, such as that of an invalid variable, is no reason for an exchange
                if self.known(name) is None:
                    return True
        return False

    def place(self) -> Place:
        """Return where this process runs: its machine, and the ranks and sizes that are already known.

        Called on every process if ``needs_placement_exchange`` returns True. Rank 0 receives the results of all processes.
        """
        from accelkit.specs.process_placement import Place, this_machine  # imported here, because a job of one process does not need it

        host, machine = this_machine()
        said: list[int | None] = []
        for name in PLACEMENT:
            try:
                said.append(self.known(name))
            except AccelkitError:  # a machine that the scheduler did not name is identified by its own name
                said.append(None)
        return Place(host, machine, *said)

    def resolve_placement(self, places: Sequence[Place]) -> None:
        """Work out the placement of this process, and set ``placement`` to it.

        Called on every process, after ``place``, if a plugin overrides this method or the places contradict each other. Otherwise, this
        method is not called: rank 0 works out all placements, as the default does, and sends each process its own placement.

        Args:
            places: The result of ``place`` on each process, ordered by rank.

        Raises:
            ContradictionError: If node ranks or local ranks are not numbered from 0, or if the places contradict each other.
        """
        from accelkit.specs.process_placement import placements

        self.placement = placements(places, self.plugin, self.launcher)[self.global_rank]

    def validate_settings(self, num_devices: int | None, num_nodes: int | None) -> None:
        """Compare the user's settings with the processes that were launched.

        Does nothing if no launcher started the processes. Does not compare a number that is known only after the processes have joined the
        process group.

        Args:
            num_devices: The number of devices on each machine. None if the user did not set it.
            num_nodes: The number of machines in the job. None if the user did not set it.

        Raises:
            ContradictionError: If the settings do not match the processes. The error says which flag of the launcher to use.
        """
        if not self.creates_processes_externally:
            return
        nodes, here = self.known("num_nodes"), self.known("local_world_size")
        if None not in (num_nodes, nodes) and num_nodes != nodes:
            said, there = f"num_nodes={num_nodes}", f"{nodes} machine{'s' * (nodes != 1)}"
            raise self._contradiction(said, there, self.nodes_flag.format(num_nodes), "num_nodes=")
        if num_devices is None:
            return
        said, flag = f"devices={num_devices} on each machine", self.processes_flag.format(num_devices)
        if here not in (None, num_devices):
            raise self._contradiction(said, f"{here} process{'es' * (here != 1)} on this machine", flag, "devices=")
        nodes = num_nodes if nodes is None else nodes
        if nodes is not None and num_devices * nodes != self.world_size:
            there = f"{self.world_size} processes on {nodes} machine{'s' * (nodes != 1)}"
            raise self._contradiction(said, there, flag, "devices=")

    def is_preempted(self) -> bool:
        """Return whether the job will soon lose the machine of this process. The default returns False.

        Override this method if a notice other than SIGTERM or SIGUSR1 announces a preemption, for example a file or the response of a cloud
        service. On each process, a background thread calls the method at intervals of ``preemption_poll_seconds``. The calls begin when the
        program first calls the Runtime's ``watch_preemption``, ``is_preempted``, ``save_and_stop_if_preempted`` or ``resume``. They end
        when this method returns True or the Runtime is torn down. The method may block, because no step waits for it. If the method waits
        for a response, limit the wait: after the notice, the job must still have time to save before the machine is taken away.

        If the method returns True on any process, ``Runtime.is_preempted`` returns True on all processes. If a call raises an error, takes
        longer than six intervals, or returns anything but a bool, the program continues with one warning that names the plugin. After an
        error or a wrong return value, the next call is six intervals later.
        """
        return False

    @hookimpl(trylast=True)
    def requeue(self) -> bool | None:
        """Put the job back into the scheduler's queue, so that the scheduler starts the job again.

        Called only with ``Runtime(requeue=True)``, on the main process, when the job was told to end and its state has been saved.

        Returns:
            Whether the scheduler accepted the job. None counts as False.

        Raises:
            UnsupportedError: If this environment cannot requeue a job. The default always raises this error.
        """
        raise UnsupportedError(
            f"the cluster environment {self.name!r} cannot requeue a job",
            plugin=self.plugin,
            why="the launcher has no job queue, or the environment does not implement requeue()",
            hint="omit requeue and start the job again yourself, or choose another environment with ACCELKIT_CLUSTER",
        )

    def _contradiction(self, said: str, there: str, flag: str, argument: str) -> ContradictionError:
        return ContradictionError(
            f"{said} was requested, but the job was started with {there}",
            plugin=self.plugin,
            why=f"the number comes from the cluster environment {self.name!r}",
            hint=f"start the job with {flag}, or omit {argument}",
        )

    def __repr__(self) -> str:
        return f"<cluster environment {self.name or type(self).__name__}>"
