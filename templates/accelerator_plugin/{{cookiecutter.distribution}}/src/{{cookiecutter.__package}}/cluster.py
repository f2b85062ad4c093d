"""Where a process learns its rank and where the others are: ``{{ cookiecutter.accelerator | upper }}_*`` variables.

Their names are made up: put those that the launcher sets. What stands in comments has that default, and need not be there.
"""

from __future__ import annotations

from collections.abc import Mapping

from accelkit import ClusterEnvironment, Detection


class {{ cookiecutter.__class }}Environment(ClusterEnvironment):
    """{{ cookiecutter.vendor }}'s launcher."""

    launcher = "the launcher of {{ cookiecutter.vendor }}"  # errors tell the user to start the program with it
    processes_flag = "{} processes on each machine"  # and how to ask it for this many
    nodes_flag = "{} machines"

    def detect_cluster(self, environ: Mapping[str, str]) -> Detection | None:
        """Above a scheduler in whose job the launcher runs (30 to 60), below torchrun (100)."""
        if environ.get("{{ cookiecutter.accelerator | upper }}_JOB"):
            return Detection("{{ cookiecutter.accelerator }}", 70, "{{ cookiecutter.accelerator | upper }}_JOB")
        return None

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher started them."""
        return True

    @property
    def world_size(self) -> int:
        """{{ cookiecutter.accelerator | upper }}_WORLD_SIZE."""
        return self.number("{{ cookiecutter.accelerator | upper }}_WORLD_SIZE", least=1)

    @property
    def global_rank(self) -> int:
        """{{ cookiecutter.accelerator | upper }}_RANK."""
        return self.number("{{ cookiecutter.accelerator | upper }}_RANK", below=("{{ cookiecutter.accelerator | upper }}_WORLD_SIZE",))

    @property
    def local_world_size(self) -> int:
        """{{ cookiecutter.accelerator | upper }}_LOCAL_WORLD_SIZE; as many on each machine if it is not set."""
        return self.number("{{ cookiecutter.accelerator | upper }}_LOCAL_WORLD_SIZE", least=1, default=max(1, self.world_size // self.num_nodes))

    @property
    def local_rank(self) -> int:
        """{{ cookiecutter.accelerator | upper }}_LOCAL_RANK."""
        return self.number("{{ cookiecutter.accelerator | upper }}_LOCAL_RANK", below=self.local_world_size)

    @property
    def num_nodes(self) -> int:
        """{{ cookiecutter.accelerator | upper }}_NODES; one if it is not set."""
        return self.number("{{ cookiecutter.accelerator | upper }}_NODES", least=1, default=1)

    @property
    def node_rank(self) -> int:
        """{{ cookiecutter.accelerator | upper }}_NODE; by the rank if it is not set."""
        return self.number("{{ cookiecutter.accelerator | upper }}_NODE", below=self.num_nodes, default=self.global_rank // self.local_world_size)

    @property
    def main_address(self) -> str:
        """MASTER_ADDR: the machine of rank 0."""
        return self.address("MASTER_ADDR")

    @property
    def main_port(self) -> int:
        """MASTER_PORT: the same on every process, and not that of another job there."""
        return self.port("MASTER_PORT")

    # -- optional: uncomment what this launcher does otherwise; the code is accelkit's default ---------------------------------
    #
{% include "cluster_options.txt" %}
