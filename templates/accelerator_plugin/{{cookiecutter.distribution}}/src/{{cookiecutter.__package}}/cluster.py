"""The cluster environment ``{{ cookiecutter.accelerator }}_cluster``.

It reads a process's rank and its peers from ``{{ cookiecutter.accelerator | upper }}_*`` variables, whose names are examples: replace
them with the names of the variables that the launcher sets. The comments show the defaults of optional methods. They can be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping

from accelkit import ClusterDetection, ClusterEnvironment


class {{ cookiecutter.__class }}Environment(ClusterEnvironment):
    """{{ cookiecutter.vendor }}'s launcher."""

    launcher = "the launcher of {{ cookiecutter.vendor }}"  # errors tell the user to start the program with this launcher
    processes_flag = "{} processes on each machine"  # errors use these to tell the user how to start that many processes
    nodes_flag = "{} machines"

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a claim with a priority above that of a scheduler that runs the launcher (30 to 60), and below torchrun's (100)."""
        if environ.get("{{ cookiecutter.accelerator | upper }}_JOB"):
            return ClusterDetection("{{ cookiecutter.accelerator }}_cluster", 70, "{{ cookiecutter.accelerator | upper }}_JOB is set")
        return None

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher starts the processes."""
        return True

    @property
    def world_size(self) -> int:
        """Number of processes. Read from {{ cookiecutter.accelerator | upper }}_WORLD_SIZE."""
        return self.number("{{ cookiecutter.accelerator | upper }}_WORLD_SIZE", least=1)

    @property
    def global_rank(self) -> int:
        """Rank of this process. Read from {{ cookiecutter.accelerator | upper }}_RANK."""
        return self.number("{{ cookiecutter.accelerator | upper }}_RANK", below=("{{ cookiecutter.accelerator | upper }}_WORLD_SIZE",))

    @property
    def local_world_size(self) -> int:
        """Number of processes on this machine. Read from {{ cookiecutter.accelerator | upper }}_LOCAL_WORLD_SIZE, else an equal share."""
        return self.number("{{ cookiecutter.accelerator | upper }}_LOCAL_WORLD_SIZE", least=1, default=max(1, self.world_size // self.num_nodes))

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine. Read from {{ cookiecutter.accelerator | upper }}_LOCAL_RANK."""
        return self.number("{{ cookiecutter.accelerator | upper }}_LOCAL_RANK", below=self.local_world_size)

    @property
    def num_nodes(self) -> int:
        """Number of machines. Read from {{ cookiecutter.accelerator | upper }}_NODES."""
        return self.number("{{ cookiecutter.accelerator | upper }}_NODES", least=1)

    @property
    def node_rank(self) -> int:
        """Rank of this machine. Read from {{ cookiecutter.accelerator | upper }}_NODE, else computed from the rank of this process."""
        return self.number("{{ cookiecutter.accelerator | upper }}_NODE", below=self.num_nodes, default=self.global_rank // self.local_world_size)

    @property
    def main_address(self) -> str:
        """Address of the machine of rank 0. Read from MASTER_ADDR."""
        return self.address("MASTER_ADDR")

    @property
    def main_port(self) -> int:
        """Port on that machine, which must be the same in every process and differ from other jobs' ports. Read from MASTER_PORT."""
        return self.port("MASTER_PORT")

    # -- optional: uncomment what differs for this launcher; the code shows accelkit's default ---------------------------------
    #
{% include "cluster_options.txt" %}
