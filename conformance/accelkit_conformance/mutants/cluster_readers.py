"""Cluster environments that accept missing, invalid or contradictory variables, or raise the wrong error for them."""

from __future__ import annotations

from accelkit import UsageError
from accelkit_builtin.clusters.torchelastic import TorchElasticEnvironment
from accelkit_conformance.mutants import mutant


@mutant("cluster_errors", "defaults", kind="cluster", base="torchelastic")
class AloneWithoutSize(TorchElasticEnvironment):
    """If WORLD_SIZE is not set, each process trains alone."""

    @property
    def world_size(self) -> int:
        return self.number("WORLD_SIZE", least=1, default=1)

    @property
    def global_rank(self) -> int:
        return self.number("RANK") if self.world_size > 1 else 0


@mutant("cluster_errors", "defaults", kind="cluster", base="torchelastic")
class DefaultsToRankZero(TorchElasticEnvironment):
    """Every process has rank 0 if RANK is not set."""

    @property
    def global_rank(self) -> int:
        return self.number("RANK", default=0)


@mutant("cluster_errors", "defaults", kind="cluster", base="torchelastic")
class NonsenseIsZero(TorchElasticEnvironment):
    """A rank that is not a number is read as 0."""

    @property
    def global_rank(self) -> int:
        rank = self.text("RANK") or ""
        return int(rank) if rank.isdecimal() else 0


@mutant("cluster_errors", "error_forms", kind="cluster", base="torchelastic")
class KeyErrors(TorchElasticEnvironment):
    """If WORLD_SIZE is missing, a KeyError is raised instead of a UsageError, so the user's mistake looks like a defect of the plugin."""

    @property
    def world_size(self) -> int:
        return int(self.environ["WORLD_SIZE"])


@mutant("cluster_errors", "error_forms", kind="cluster", base="torchelastic")
class ErrorNamesNothing(TorchElasticEnvironment):
    """If WORLD_SIZE is missing or is not a number, the error does not mention WORLD_SIZE."""

    @property
    def world_size(self) -> int:
        size = self.text("WORLD_SIZE") or ""
        if not size.isdecimal():
            raise UsageError("the environment is invalid", plugin=self.plugin, why="a number is expected", hint="use the launcher")
        return int(size)


@mutant("cluster_errors", "error_forms", kind="cluster", base="torchelastic")
class RankIsNotCompared(TorchElasticEnvironment):
    """``global_rank`` does not raise an error if the rank is greater than or equal to the world size."""

    @property
    def global_rank(self) -> int:
        return self.number("RANK")
