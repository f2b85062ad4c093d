"""Ray: an actor, of a TorchTrainer or with variables that its driver gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelkit import ClusterEnvironment, Detection


class RayEnvironment(ClusterEnvironment):
    """Ray: a worker process of a Ray cluster, one of several actors that train together, or alone.

    Protocol: Ray tells a process that it is a worker (RAY_RAYLET_PID), and not which of several. ``ray.train``'s TorchTrainer sets RANK,
    WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT in its actors; ``variables`` makes them for others.
    """

    launcher = "ray.train's TorchTrainer, or RayEnvironment.variables for actors of your own"
    processes_flag = "ScalingConfig(num_workers=...) with {} workers on each machine"
    nodes_flag = "ScalingConfig(num_workers=...) on {} machines"

    def detect_cluster(self, environ: Mapping[str, str]) -> Detection | None:
        """Above SLURM and MPI, whose variables a worker inherits from whoever started Ray on its machine; below torchrun."""
        if not environ.get("RAY_RAYLET_PID"):
            return None
        if environ.get("WORLD_SIZE") or environ.get("RANK"):
            return Detection("ray", 90, "RAY_RAYLET_PID and RANK: an actor of Ray with a rank")
        return Detection("ray", 90, "RAY_RAYLET_PID: a worker of Ray that was given no rank, and trains alone")

    @staticmethod
    def variables(actors: Sequence[tuple[str, str]], port: int) -> list[dict[str, str]]:
        """The variables with which actors train together: each sets its own in ``os.environ`` before it makes a Runtime.

        Args:
            actors: Each actor's machine as (node id, address), as ``ray.get_runtime_context().get_node_id()`` and
                ``ray.util.get_node_ip_address()`` say in the actor.
            port: A TCP port that is free on the first actor's machine.

        Returns:
            For each actor, in the order given: ranks count machine by machine, and the first actor is rank 0.
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
        """True: Ray started all of them."""
        return True

    @property
    def world_size(self) -> int:
        """WORLD_SIZE; 1 where no variable speaks of ranks."""
        return self.number("WORLD_SIZE", least=1, default=self._alone(1))

    @property
    def global_rank(self) -> int:
        """RANK."""
        return self.number("RANK", below=self.world_size, default=self._alone(0))

    @property
    def local_rank(self) -> int:
        """LOCAL_RANK."""
        return self.number("LOCAL_RANK", below=self.local_world_size, default=self._alone(0))

    @property
    def local_world_size(self) -> int:
        """LOCAL_WORLD_SIZE."""
        return self.number("LOCAL_WORLD_SIZE", least=1, below=self.world_size + 1, default=self._alone(1))

    @property
    def node_rank(self) -> int:
        """NODE_RANK; else it is known once the processes have joined, or if all are on this machine."""
        nodes = self.known("num_nodes")
        if self.text("NODE_RANK") is not None:
            return self.number("NODE_RANK", below=nodes or self.world_size)
        return self.told("node_rank", 0 if nodes == 1 else None)

    @property
    def num_nodes(self) -> int:
        """NNODES; TorchTrainer does not say it, and then it is known once the processes have joined, or if all are on this machine."""
        if self.text("NNODES") is not None:
            return self.number("NNODES", least=1, below=self.world_size + 1)
        return self.told("num_nodes", 1 if self.local_world_size == self.world_size else None)

    @property
    def main_address(self) -> str:
        """MASTER_ADDR."""
        return self.address("MASTER_ADDR")

    @property
    def main_port(self) -> int:
        """MASTER_PORT."""
        return self.port("MASTER_PORT")

    @property
    def job_id(self) -> str | None:
        """RAY_JOB_ID, unless Ray started the process before it knew (``ffffffff``)."""
        job = self.text("RAY_JOB_ID")
        return None if job == "ffffffff" else job

    def _alone(self, value: int) -> int | None:
        return value if self.text("RANK", "WORLD_SIZE", "LOCAL_RANK") is None else None
