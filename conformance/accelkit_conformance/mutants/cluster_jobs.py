"""Cluster environments that keep the processes of a job from finding each other, or that mishandle preemption and requeueing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from typing import ClassVar

from accelkit import AccelkitError
from accelkit_builtin.clusters.slurm import SlurmEnvironment
from accelkit_builtin.clusters.torchelastic import TorchElasticEnvironment
from accelkit_conformance.mutants import mutant


@mutant("cluster_jobs", "processes of a job", kind="cluster", base="torchelastic")
class OwnAddress(TorchElasticEnvironment):
    """On ranks other than 0, ``main_address`` is an invented host name with the rank in it, as if each process gave the name of its own
    machine instead of the name of rank 0's machine.
    """

    @property
    def main_address(self) -> str:
        return super().main_address if self.global_rank == 0 else f"worker-{self.global_rank}.invalid"


@mutant("cluster_jobs", "processes of a job", kind="cluster", base="torchelastic")
class PortOfMember(TorchElasticEnvironment):
    """``main_port`` differs by rank, so the processes of a job cannot connect to each other."""

    @property
    def main_port(self) -> int:
        return super().main_port + self.global_rank


@mutant("cluster_jobs", "processes of a job", kind="cluster", base="torchelastic")
class ReservesPort(TorchElasticEnvironment):
    """Reading ``main_port`` binds a socket to the port to reserve it, so the process group cannot use the port."""

    _reserved: ClassVar[dict[int, socket.socket]] = {}

    @property
    def main_port(self) -> int:
        port = super().main_port
        if port not in self._reserved:
            self._reserved[port] = socket.create_server(("", port))
        return port


@mutant("cluster_jobs", "preemption notices", kind="cluster", base="torchelastic")
class NoticeIsNone(TorchElasticEnvironment):
    """``is_preempted`` returns None instead of False if there is no preemption notice."""

    def is_preempted(self) -> bool:
        if "PREEMPTED" in self.environ:
            return True
        return None  # type: ignore[return-value]


@mutant("cluster_jobs", "preemption notices", kind="cluster", base="torchelastic")
class WaitsForNotice(TorchElasticEnvironment):
    """``is_preempted`` waits for a preemption notice instead of returning False."""

    preemption_poll_seconds = 0.2

    def is_preempted(self) -> bool:
        while "PREEMPTED" not in self.environ:
            time.sleep(0.05)
        return True


@mutant("cluster_jobs", "preemption notices", kind="cluster", base="torchelastic")
class AlarmInThread(TorchElasticEnvironment):
    """``is_preempted`` sets a handler for SIGALRM. Python allows this only in the main thread, but accelkit calls
    ``is_preempted`` in another thread."""

    def is_preempted(self) -> bool:
        def stop(number: int, frame: FrameType | None) -> None:
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, stop)
        signal.signal(signal.SIGALRM, before)
        return False


@mutant("cluster_jobs", "requeueing", kind="cluster", base="slurm")
class RequeuedAnyway(SlurmEnvironment):
    """``requeue`` swallows every error and returns True, as if the job had been requeued."""

    def requeue(self) -> bool:
        try:
            return super().requeue()
        except AccelkitError:
            return True


@mutant("cluster_jobs", "requeueing", kind="cluster", base="slurm")
class RequeueExits(SlurmEnvironment):
    """If the job cannot be requeued, ``requeue`` exits the process, so the program cannot report the failure."""

    def requeue(self) -> bool:
        try:
            return super().requeue()
        except AccelkitError as error:
            sys.exit(str(error))


@mutant("cluster_jobs", "requeueing", kind="cluster", base="slurm")
class RequeueLeaksErrors(SlurmEnvironment):
    """If scontrol is missing, ``requeue`` raises a FileNotFoundError instead of an UnavailableError."""

    def requeue(self) -> bool:
        command = ["scontrol", "requeue", self.job_id or ""]
        subprocess.run(command, check=True)
        return True
