"""Cluster environments with a wrong ``detect_cluster``.

Some of these environments claim processes that srun did not start. Others return a claim with the wrong name, type or priority, read the
wrong variables, or raise an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from accelkit import ClusterDetection
from accelkit_builtin.clusters.mpi import MPIEnvironment
from accelkit_builtin.clusters.slurm import SlurmEnvironment
from accelkit_builtin.clusters.torchelastic import TorchElasticEnvironment
from accelkit_conformance.mutants import mutant


@mutant("cluster_detection", "claims of processes", kind="cluster", base="slurm")
class ClaimsJobScript(SlurmEnvironment):
    """A program that the batch script starts without srun is claimed too, so the program waits for processes that do not exist."""

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        job = environ.get("SLURM_JOB_ID")
        return ClusterDetection("slurm", 50, f"SLURM_JOB_ID={job}") if job else None


@mutant("cluster_detection", "claims of processes", kind="cluster", base="slurm")
class ClaimsEverything(SlurmEnvironment):
    """Every process is claimed if the plugin is installed, even if SLURM did not start the process."""

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        return ClusterDetection("slurm", 95, "the SLURM plugin is installed")


@mutant("cluster_detection", "claims of processes", kind="cluster", base="torchelastic")
class ClaimsTooLow(TorchElasticEnvironment):
    """The claim has a lower priority than a scheduler's claim, so torchrun is not detected inside a scheduler's job."""

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        claim = super().detect_cluster(environ)
        return None if claim is None else ClusterDetection(claim.name, 10, claim.reason)


@mutant("cluster_detection", "claim_forms", kind="cluster", base="torchelastic")
class ClaimsByBrand(TorchElasticEnvironment):
    """The claim has the launcher's name instead of the name under which the environment is selected."""

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        claim = super().detect_cluster(environ)
        return None if claim is None else ClusterDetection("torchrun", claim.priority, claim.reason)


@mutant("cluster_detection", "claim_forms", kind="cluster", base="mpi")
class AnswersYes(MPIEnvironment):
    """``detect_cluster`` returns True instead of a ClusterDetection, and False instead of None."""

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        return super().detect_cluster(environ) is not None  # type: ignore[return-value]


@mutant("cluster_detection", "claim_sources", kind="cluster", base="slurm")
class DetectsFromProcess(SlurmEnvironment):
    """``detect_cluster`` also reads ``os.environ``. Variables there take precedence over those in its argument ``environ``."""

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        return super().detect_cluster({**environ, **os.environ})


@mutant("cluster_detection", "claim_sources", kind="cluster", base="slurm")
class DetectionRaises(SlurmEnvironment):
    """``detect_cluster`` raises ValueError if SLURM_STEP_ID is not a number."""

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        int(environ.get("SLURM_STEP_ID") or 0)
        return super().detect_cluster(environ)
