"""Ray: actors of a TorchTrainer, other actors that set the environment variables from ``RayEnvironment.variables``, and workers that train
alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelkit import ClusterDetection, ClusterEnvironment


class RayEnvironment(ClusterEnvironment):
    """The environment of a Ray worker that either trains alone or runs an actor that trains together with other actors.

    Protocol: Ray sets RAY_RAYLET_PID in each worker, but no variable for the worker's rank. ``ray.train``'s TorchTrainer sets RANK,
    WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT in its actors. Other actors that train
    together must set these variables themselves. ``RayEnvironment.variables`` computes the values for each of these actors.
    """

    launcher = "ray.train's TorchTrainer, or set RayEnvironment.variables in your own actors"
    processes_flag = "ScalingConfig(num_workers=...) with {} workers on each machine"
    nodes_flag = "ScalingConfig(num_workers=...) on {} machines"

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a claim (a ``ClusterDetection``) that ranks above the claims of SLURM and MPI, and below the claim of torchrun.

        The claims of SLURM and MPI may be wrong, because a worker inherits the variables of SLURM and MPI from the process that started
        Ray on the machine. The result is None if this process is not a worker of a Ray cluster.
        """
        if not environ.get("RAY_RAYLET_PID"):
            return None
        if environ.get("WORLD_SIZE") or environ.get("RANK"):
            return ClusterDetection("ray", 90, "RAY_RAYLET_PID and RANK: this is a Ray actor with a rank")
        return ClusterDetection("ray", 90, "RAY_RAYLET_PID: this is a Ray worker without a rank, which trains alone")

    @staticmethod
    def variables(actors: Sequence[tuple[str, str]], port: int) -> list[dict[str, str]]:
        """Return the environment variables, such as RANK and WORLD_SIZE, for actors that train together.

        Each actor must set its variables in ``os.environ`` before it creates a Runtime.

        Args:
            actors: One tuple (node id, address) for each actor. In the actor, ``ray.get_runtime_context().get_node_id()`` returns the node
                id, and ``ray.util.get_node_ip_address()`` returns the address.
            port: A TCP port that is free on the first actor's machine.

        Returns:
            The variables of each actor, in the order of ``actors``. Ranks are assigned machine by machine, and the first actor has rank 0.
        """
        nodes = list(dict.fromkeys(node for node, _ in actors))
        order = sorted(range(len(actors)), key=lambda index: nodes.index(actors[index][0]))
        made: list[dict[str, str]] = [{} for _ in actors]
        for rank, index in enumerate(order):
            node = actors[index][0]
            neighbours = [other for other in order if actors[other][0] == node]
            made[index] = {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(actors)),
                "LOCAL_RANK": str(neighbours.index(index)),
                "LOCAL_WORLD_SIZE": str(len(neighbours)),
                "NODE_RANK": str(nodes.index(node)),
                "NNODES": str(len(nodes)),
                "MASTER_ADDR": actors[0][1],
                "MASTER_PORT": str(port),
            }
        return made

    @property
    def creates_processes_externally(self) -> bool:
        """True: Ray started all processes."""
        return True

    @property
    def world_size(self) -> int:
        """Value of WORLD_SIZE, or 1 if RANK, WORLD_SIZE and LOCAL_RANK are all unset."""
        return self.number("WORLD_SIZE", least=1, default=self._alone(1))

    @property
    def global_rank(self) -> int:
        """Value of RANK, or 0 if RANK, WORLD_SIZE and LOCAL_RANK are all unset."""
        return self.number("RANK", below=self.world_size, default=self._alone(0))

    @property
    def local_rank(self) -> int:
        """Value of LOCAL_RANK, or 0 if RANK, WORLD_SIZE and LOCAL_RANK are all unset."""
        return self.number("LOCAL_RANK", below=self.local_world_size, default=self._alone(0))

    @property
    def local_world_size(self) -> int:
        """Value of LOCAL_WORLD_SIZE, or 1 if RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE are all unset."""
        return self.number("LOCAL_WORLD_SIZE", least=1, below=self.world_size + 1, default=self._alone(1))

    @property
    def node_rank(self) -> int:
        """Value of NODE_RANK.

        Without NODE_RANK, the value is 0 if all processes are on this machine. Otherwise, the processes work out the value when they join
        the process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        nodes = self.known("num_nodes")
        if self.text("NODE_RANK") is not None:
            return self.number("NODE_RANK", below=nodes or self.world_size)
        return self.exchanged_value("node_rank", 0 if nodes == 1 else None)

    @property
    def num_nodes(self) -> int:
        """Value of NNODES, which TorchTrainer does not set.

        Without NNODES, the value is 1 if all processes are on this machine. Otherwise, the processes work out the value when they join the
        process group.

        Raises:
            UnknownPlacementError: If the processes have to work out the value and have not joined the process group yet.
        """
        if self.text("NNODES") is not None:
            return self.number("NNODES", least=1, below=self.world_size + 1)
        return self.exchanged_value("num_nodes", 1 if self.local_world_size == self.world_size else None)

    @property
    def main_address(self) -> str:
        """Value of MASTER_ADDR."""
        return self.address("MASTER_ADDR")

    @property
    def main_port(self) -> int:
        """Value of MASTER_PORT."""
        return self.port("MASTER_PORT")

    @property
    def job_id(self) -> str | None:
        """Value of RAY_JOB_ID. None if it is not set, or if it is ``ffffffff`` because Ray started the process before the job was known."""
        job = self.text("RAY_JOB_ID")
        return None if job == "ffffffff" else job

    def _alone(self, value: int) -> int | None:
        return value if self.text("RANK", "WORLD_SIZE", "LOCAL_RANK") is None else None
