"""An accelkit cluster environment as Lightning's, and the other way round."""

from __future__ import annotations

import signal
from typing import Any, ClassVar

from accelkit.bridges.lightning.compat import Framework
from accelkit.specs.cluster import ClusterEnvironment


class PluginEnvironment:
    """What Lightning asks of a cluster environment, answered by ``plugin``. Ranks are the launcher's: Lightning cannot set them."""

    plugin: ClassVar[ClusterEnvironment]

    def __init__(self) -> None:
        """Not the base class's: SLURMEnvironment's refuses jobs without --ntasks-per-node, which accelkit can read."""
        self.auto_requeue = True
        self.requeue_signal = signal.SIGUSR1

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
        """Nothing: the launcher said it."""

    def set_global_rank(self, rank: int) -> None:
        """Nothing: the launcher said it."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare with what was launched.

        Raises:
            ContradictionError: If it does not fit, with the launcher's flag to change.
        """
        self.plugin.validate_settings(num_devices, num_nodes)


def make_environment(framework: Framework, cluster: ClusterEnvironment) -> Any:
    """Lightning's cluster environment. Where nobody started this process, Lightning's own, which starts the others.

    That of SLURM is a SLURMEnvironment: by that the Trainer knows that it has to save and requeue when SIGUSR1 comes.
    """
    if not cluster.creates_processes_externally:
        return framework.environments.LightningEnvironment()
    base = framework.environments.SLURMEnvironment if cluster.name == "slurm" else framework.environments.ClusterEnvironment
    attributes = {"plugin": cluster, "__doc__": type(cluster).__doc__, "__module__": __name__}
    return type(type(cluster).__name__, (PluginEnvironment, base), attributes)()


class LightningCluster(ClusterEnvironment):
    """What a Lightning cluster environment says, in accelkit's form."""

    def __init__(self, environment: Any) -> None:
        super().__init__()
        self._environment = environment
        self.name = type(environment).__name__
        self.plugin = getattr(getattr(environment, "plugin", None), "plugin", "") or type(environment).__module__.partition(".")[0]

    @property
    def creates_processes_externally(self) -> bool:
        return bool(self._environment.creates_processes_externally)

    @property
    def world_size(self) -> int:
        return int(self._environment.world_size())

    @property
    def global_rank(self) -> int:
        return int(self._environment.global_rank())

    @property
    def local_rank(self) -> int:
        return int(self._environment.local_rank())

    @property
    def node_rank(self) -> int:
        return int(self._environment.node_rank())

    @property
    def main_address(self) -> str:
        return str(self._environment.main_address)

    @property
    def main_port(self) -> int:
        return int(self._environment.main_port)
