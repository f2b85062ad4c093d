"""An accelkit cluster environment as a Lightning cluster environment, and vice versa."""

from __future__ import annotations

import signal
from typing import Any, ClassVar

from accelkit.bridges.lightning.compat import Framework
from accelkit.runtime.process_group import join
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.process_group import ProcessGroupOptions


class PluginEnvironment:
    """A cluster environment for Lightning that takes its values from the accelkit plugin ``plugin``.

    The methods that set a rank or the world size do nothing, because the launcher has set these values.
    """

    plugin: ClassVar[ClusterEnvironment]

    def __init__(self) -> None:
        """Set the attributes that Lightning reads, without calling the ``__init__`` of Lightning's class.

        SLURMEnvironment's ``__init__`` rejects jobs without --ntasks-per-node, but accelkit supports these jobs.
        """
        self.auto_requeue = True
        self.requeue_signal = getattr(signal, "SIGUSR1", None)  # Windows has none

    @classmethod
    def detect(cls) -> bool:
        return True

    @property
    def creates_processes_externally(self) -> bool:
        return self.plugin.creates_processes_externally

    @property
    def main_address(self) -> str:
        return self.plugin.main_address

    @property
    def main_port(self) -> int:
        return self.plugin.main_port

    def world_size(self) -> int:
        return self.plugin.world_size

    def global_rank(self) -> int:
        return self.plugin.global_rank

    def local_rank(self) -> int:
        return self.plugin.local_rank

    def node_rank(self) -> int:
        return self.plugin.node_rank

    def set_world_size(self, size: int) -> None:
        """Do nothing, because the launcher has set the world size."""

    def set_global_rank(self, rank: int) -> None:
        """Do nothing, because the launcher has set the rank."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check that the settings match the processes that were launched.

        Raises:
            ContradictionError: If they do not match. The error names the launcher's flag that must be changed.
        """
        self.plugin.validate_settings(num_devices, num_nodes)


def make_environment(framework: Framework, cluster: ClusterEnvironment) -> Any:
    """Create a cluster environment for Lightning.

    If no launcher started this process, the result is Lightning's own LightningEnvironment, with which Lightning starts the other
    processes. For SLURM, the result is a SLURMEnvironment. With it, the Trainer saves a checkpoint and requeues the job when the process
    receives SIGUSR1.
    """
    if not cluster.creates_processes_externally:
        return framework.environments.LightningEnvironment()
    base = framework.environments.SLURMEnvironment if cluster.name == "slurm" else framework.environments.ClusterEnvironment
    attributes = {"plugin": cluster, "__doc__": type(cluster).__doc__, "__module__": __name__}
    return type(type(cluster).__name__, (PluginEnvironment, base), attributes)()


class LightningCluster(ClusterEnvironment):
    """A Lightning cluster environment as an accelkit cluster environment. It has only the properties needed to join the process group."""

    def __init__(self, environment: Any) -> None:
        super().__init__()
        self._environment = environment
        self.name = type(environment).__name__
        self.plugin = getattr(getattr(environment, "plugin", None), "plugin", "") or type(environment).__module__.partition(".")[0]

    @property
    def world_size(self) -> int:
        return int(self._environment.world_size())

    @property
    def global_rank(self) -> int:
        return int(self._environment.global_rank())

    @property
    def main_address(self) -> str:
        return str(self._environment.main_address)

    @property
    def main_port(self) -> int:
        return int(self._environment.main_port)


def join_group(strategy: Any, plugin: Accelerator) -> None:
    """Start the device of a Lightning strategy, and create the process group, so that Lightning does not create one."""
    strategy.accelerator.setup_device(strategy.root_device)
    cluster = LightningCluster(strategy.cluster_environment)
    join(strategy, cluster, strategy.root_device, plugin.process_group_backend, ProcessGroupOptions().seconds)
