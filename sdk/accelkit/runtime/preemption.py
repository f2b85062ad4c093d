"""Preemption. When a scheduler asks a job to stop, all processes save once at the same step, and the job can be queued again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from accelkit.errors import CheckpointError, UnsupportedError, UsageError
from accelkit.plugin_manager import PluginManager
from accelkit.specs.cluster import ClusterEnvironment

if TYPE_CHECKING:
    from accelkit.runtime.checkpoints.coordinator import Ranks
    from accelkit.runtime.collectives.communicator import Communicator

SIGNALS = ("SIGTERM", "SIGUSR1")


class Notice:
    """Records whether this process received a signal by which schedulers announce that they will stop a job.

    SLURM sends SIGTERM at the time limit and to a preempted job, and before that the signal that ``sbatch --signal=USR1@60`` asks for.
    The agent of torchrun and Kubernetes send SIGTERM. A handler that was installed before is called as well; the default action, which
    ends the process, is not taken.

    Attributes:
        received: The name of the first signal received, or an empty string.
    """

    def __init__(self) -> None:
        self.received = ""
        self._before: dict[int, Any] = {}

    def listen(self, names: Sequence[str] = SIGNALS) -> None:
        """Install the signal handlers, unless they are installed already.

        Raises:
            UsageError: If called outside the main thread, where Python does not allow signal handlers to be installed.
        """
        if self._before:
            return
        if threading.current_thread() is not threading.main_thread():
            why, hint = "Python lets only the main thread install signal handlers", "call watch_preemption() in the main thread"
            raise UsageError("preemption cannot be watched for from this thread", why=why, hint=hint)
        for name in names:
            number = getattr(signal, name, None)
            if number is not None:  # Windows has no SIGUSR1
                self._before[number] = signal.signal(number, self._note)

    def forget(self) -> None:
        """Restore the previous signal handlers and forget any signal received."""
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}
        self.received = ""

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name
        before = self._before.get(number)
        if callable(before):
            before(number, frame)


def check_requeue(plugin_manager: PluginManager, cluster: ClusterEnvironment) -> None:
    """Check at the start of a job, rather than at its end, that it can be queued again.

    Raises:
        UnsupportedError: If neither the cluster environment nor a hook plugin can put a job back into a queue.
    """
    able = [
        one
        for one in plugin_manager.hook.requeue.get_hookimpls()
        if getattr(one.function, "__func__", None) is not ClusterEnvironment.requeue
    ]
    if not able:
        raise UnsupportedError(
            f"requeue=True, and the cluster environment {cluster.name!r} has no queue",
            plugin=cluster.plugin,
            why="it does not implement requeue(), and no hook plugin does",
            hint="leave requeue out, or run under a scheduler; accelkit why --cluster shows what was recognised",
        )


class Preemption:
    """The part of a Runtime that saves a preempted job and resumes it later."""

    cluster: ClusterEnvironment
    plugin_manager: PluginManager
    _notice: Notice
    _wants_requeue: bool

    if TYPE_CHECKING:

        @property
        def num_processes(self) -> int: ...
        @property
        def is_main_process(self) -> bool: ...
        @property
        def device(self) -> torch.device: ...

        def wait_for_everyone(self) -> None: ...
        def save_state(self, path: str | Path) -> Path: ...
        def load_state(self, path: str | Path) -> None: ...
        def _ranks(self, call: str) -> Ranks: ...
        def _communicator(self, group: Any) -> Communicator: ...
        def _blame(self, what: str, error: Exception) -> CheckpointError: ...

    def watch_preemption(self) -> None:
        """Catch SIGTERM and SIGUSR1, so that they do not end this process and ``is_preempted`` reports them.

        ``is_preempted``, ``save_and_stop_if_preempted`` and ``resume`` catch the signals as well.
        """
        self._notice.listen()

    def is_preempted(self) -> bool:
        """Return whether any process of the job was told to stop.

        Every process must call this at the same step, and all processes get the same answer. With several processes, the call reduces
        one number, which takes about 100 microseconds on the CPU. Call it at every step if steps are long, else at every tenth step.
        """
        self._notice.listen()
        told = bool(self._notice.received)
        if self.num_processes == 1:
            return told
        communicator = self._communicator(None)
        import torch.distributed as dist

        from accelkit.runtime.collectives import transport

        flag = transport.on_communicator_device(communicator, torch.tensor([int(told)], dtype=torch.int32))
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=communicator.group)
        return bool(flag.item())

    def save_and_stop_if_preempted(self, path: str | Path) -> None:
        """If any process of the job was told to stop, save once, queue the job again if ``requeue=True`` was given, and exit.

        Every process must call this at the same step. The job is queued again after all processes have saved.

        Raises:
            SystemExit: With status 0 if the scheduler accepted the job again. Otherwise with status 143 (128 + SIGTERM), so that a
                launcher that restarts failed jobs restarts this one.
        """
        if not self.is_preempted():
            return
        saved = self.save_state(path)
        with self.plugin_manager.naming_failures("preempted", f"the checkpoint {saved} is whole and on disk; the job was not queued again"):
            self.plugin_manager.hook.preempted(path=saved)
        self.wait_for_everyone()
        raise SystemExit(0 if self._requeue() else 128 + signal.SIGTERM)

    def resume(self, path: str | Path) -> bool:
        """Load the latest checkpoint under ``path``, if there is one. The folder need not exist.

        All processes call this, and rank 0 looks for checkpoints. ``path`` is a folder that all processes can access.

        Returns:
            Whether a checkpoint was loaded. The result is the same on all processes.

        Raises:
            CheckpointError: If ``path`` cannot be read, or in the cases that ``load_state`` describes.
        """
        from accelkit.runtime.checkpoints import step_dirs  # torch.distributed.checkpoint is slow to import

        self.watch_preemption()
        ranks = self._ranks("resume")
        if not ranks.from_main(lambda error: self._blame(f"{path} could not be read", error), lambda: step_dirs.has_any(Path(path))):
            return False
        self.load_state(path)
        return True

    def _requeue(self) -> bool:
        """Ask the scheduler on the main process to queue the job again. Return its answer on all processes.

        Raises:
            AccelkitError: On the main process, if the cluster environment cannot queue the job; the other processes get False.
        """
        if not self._wants_requeue:
            return False
        answer = False
        try:
            if self.is_main_process:
                answer = bool(self.plugin_manager.hook.requeue())
        finally:
            if self.num_processes > 1:
                from accelkit.runtime.collectives import object_collectives

                answer = object_collectives.broadcast(self._communicator(None), answer)
        return answer
