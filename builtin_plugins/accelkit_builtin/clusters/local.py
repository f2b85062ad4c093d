"""This machine, this process: what a process is in when no launcher or scheduler says otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from accelkit import ClusterEnvironment, Detection


class LocalEnvironment(ClusterEnvironment):
    """This machine, without a launcher."""

    def detect_cluster(self, environ: Mapping[str, str]) -> Detection:
        """Rank 0: every other environment that recognises itself is preferred."""
        return Detection("local", 0, "no launcher or scheduler was recognised")
