"""Cluster environments with wrong properties.

Some of these environments return wrong types, ranks, sizes, rendezvous addresses or ports. Others read or write state that does not belong
to the instance, accept all settings, or do not declare that the launcher created the processes.
"""

from __future__ import annotations

import os

from accelkit_builtin.clusters.slurm import SlurmEnvironment
from accelkit_builtin.clusters.torchelastic import TorchElasticEnvironment
from accelkit_conformance.mutants import mutant


@mutant("cluster_ranks", "types", kind="cluster", base="torchelastic")
class StringRank(TorchElasticEnvironment):
    """``global_rank`` is a str instead of an int."""

    @property
    def global_rank(self) -> int:
        return self.environ.get("RANK", "0")  # type: ignore[return-value]


@mutant("cluster_ranks", "types", kind="cluster", base="torchelastic")
class MethodForProperty(TorchElasticEnvironment):
    """``num_nodes`` is a method instead of a property."""

    def num_nodes(self) -> int:  # type: ignore[override]
        return self.number("GROUP_WORLD_SIZE", least=1, default=1)


@mutant("cluster_ranks", "types", kind="cluster", base="slurm")
class JobNumber(SlurmEnvironment):
    """``job_id`` is an int instead of a str, so it never equals the job ID that the scheduler prints."""

    @property
    def job_id(self) -> str | None:
        return self.number("SLURM_JOB_ID")  # type: ignore[return-value]


@mutant("cluster_ranks", "ranks of the cluster", kind="cluster", base="torchelastic")
class LocalRankIsGlobal(TorchElasticEnvironment):
    """``local_rank`` is the global rank, which is right only on the first machine."""

    @property
    def local_rank(self) -> int:
        return self.global_rank


@mutant("cluster_ranks", "ranks of the cluster", kind="cluster", base="slurm")
class NodeRankOfTask(SlurmEnvironment):
    """``node_rank`` is the local rank of the process instead of the rank of its machine."""

    @property
    def node_rank(self) -> int:
        return self.number("SLURM_LOCALID")


@mutant("cluster_ranks", "sizes", kind="cluster", base="slurm")
class TasksOfFirstMachine(SlurmEnvironment):
    """On every machine, ``local_world_size`` is the number of processes on the first machine."""

    @property
    def local_world_size(self) -> int:
        return int((self.text("SLURM_STEP_TASKS_PER_NODE") or "1").partition("(")[0].partition(",")[0])


@mutant("cluster_ranks", "sizes", kind="cluster", base="slurm")
class SizeOfTheNode(SlurmEnvironment):
    """``world_size`` is the number of machines, as if each ran one process."""

    @property
    def world_size(self) -> int:
        return self.num_nodes


@mutant("cluster_ranks", "rendezvous", kind="cluster", base="slurm")
class AddressOfThisMachine(SlurmEnvironment):
    """On each machine, ``main_address`` is the address of that machine instead of the address of the machine that runs rank 0."""

    @property
    def main_address(self) -> str:
        return self.address("SLURMD_NODENAME")


@mutant("cluster_ranks", "rendezvous", kind="cluster", base="slurm")
class PortOfEveryJob(SlurmEnvironment):
    """``main_port`` is the same in all jobs, so two jobs that share a machine use the same port for their rendezvous."""

    @property
    def main_port(self) -> int:
        return 29500


@mutant("cluster_ranks", "rendezvous", kind="cluster", base="torchelastic")
class PortOfEveryRank(TorchElasticEnvironment):
    """``main_port`` differs between the ranks."""

    @property
    def main_port(self) -> int:
        return self.port("MASTER_PORT") + self.global_rank


@mutant("cluster_ranks", "side_effects", kind="cluster", base="slurm")
class WritesVariables(SlurmEnvironment):
    """Reading ``main_address`` sets the environment variable MASTER_ADDR, so child processes inherit this variable."""

    @property
    def main_address(self) -> str:
        os.environ["MASTER_ADDR"] = super().main_address
        return os.environ["MASTER_ADDR"]


@mutant("cluster_ranks", "side_effects", kind="cluster", base="torchelastic")
class ReadsProcessEnvironment(TorchElasticEnvironment):
    """If RANK is set in ``os.environ``, ``global_rank`` is read from there instead of from the instance's own ``environ``."""

    @property
    def global_rank(self) -> int:
        return int(os.environ.get("RANK") or self.environ["RANK"])


@mutant("cluster_ranks", "side_effects", kind="cluster", base="torchelastic")
class SharedCache(TorchElasticEnvironment):
    """The class caches the rank that its first instance read, and every other instance returns this rank."""

    _rank: int | None = None

    @property
    def global_rank(self) -> int:
        cls = type(self)
        cls._rank = super().global_rank if cls._rank is None else cls._rank
        return cls._rank


@mutant("cluster_ranks", "declarations", kind="cluster", base="torchelastic")
class StartsItsProcesses(TorchElasticEnvironment):
    """``creates_processes_externally`` is False, so accelkit does not compare the argument ``devices`` with the number of processes."""

    @property
    def creates_processes_externally(self) -> bool:
        return False


@mutant("cluster_ranks", "declarations", kind="cluster", base="slurm")
class AcceptsAnySetting(SlurmEnvironment):
    """``validate_settings`` accepts everything, so a job trains on fewer devices than the user asked for."""

    def validate_settings(self, num_devices: int | None, num_nodes: int | None) -> None:
        """Accept all settings."""
