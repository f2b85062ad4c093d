"""The cluster environment of a single process on this machine, used if no launcher or scheduler started the process."""

from __future__ import annotations

from collections.abc import Mapping

from accelkit import ClusterDetection, ClusterEnvironment, ContradictionError


class LocalEnvironment(ClusterEnvironment):
    """The environment of a single process on this machine, started without a launcher."""

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection:
        """Return a ``ClusterDetection`` of priority 0, the lowest that is ever used.

        Any other environment that claims the process takes precedence over this one.
        """
        return ClusterDetection("local", 0, "no launcher or scheduler started this process")

    def validate_settings(self, num_devices: int | None, num_nodes: int | None) -> None:
        """Check that no launcher started this process as one of several processes.

        In this environment, the processes would not communicate, so each process would train its own model.

        Raises:
            ContradictionError: If WORLD_SIZE is not 1, or RANK is not 0.
        """
        for name, alone in (("WORLD_SIZE", "1"), ("RANK", "0")):
            value = self.environ.get(name) or alone
            if value != alone:
                raise ContradictionError(
                    f"this process was started as one of several ({name}={value:.60})",
                    plugin=self.plugin,
                    why="the cluster environment 'local' is for a single process, so each process would train its own model",
                    hint=f"start the processes with torchrun or accelkit launch, or unset {name} to train in a single process",
                )
