"""This machine, this process: what a process is in when no launcher or scheduler says otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from accelkit import ClusterEnvironment, ContradictionError, Detection


class LocalEnvironment(ClusterEnvironment):
    """This machine, without a launcher."""

    def detect_cluster(self, environ: Mapping[str, str]) -> Detection:
        """Rank 0: every other environment that recognises itself is preferred."""
        return Detection("local", 0, "no launcher or scheduler was recognised")

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """A launcher that started this process beside others expects them to train together.

        Raises:
            ContradictionError: If torchrun's WORLD_SIZE is more than 1.
        """
        size = self.environ.get("WORLD_SIZE", "1")
        if size != "1":
            raise ContradictionError(
                f"this process was started as one of several (WORLD_SIZE={size})",
                plugin=self.plugin,
                why="the cluster environment 'local' runs one process, and the others would each train a model of their own",
                hint="start one process, or unset WORLD_SIZE",
            )
