"""Preemption. When a job is about to be stopped, all processes save once at the same step, and the job can be queued again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from accelkit.errors import UnsupportedError, UsageError
from accelkit.plugin_manager import PluginManager, wrong_hook_result
from accelkit.runtime.collectives.collectives import Collectives
from accelkit.runtime.preemption_poll import PreemptionPoll, has_notices
from accelkit.runtime.rank_info import RankInfo
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.tracking.trackers import Trackers

SIGNALS = ("SIGTERM", "SIGUSR1")


class StopSignals:
    """Records the first signal by which a scheduler tells this process that the job will be stopped.

    SLURM sends SIGTERM at the time limit and when it preempts a job. Before SIGTERM, SLURM sends the signal that the job requested, for
    example with ``sbatch --signal=USR1@60``. torchrun's agent and Kubernetes send SIGTERM. The handlers that ``listen`` installs also call
    the handlers that were installed before. If there were none, the signal no longer ends the process.

    Attributes:
        received: The name of the first signal received, such as ``SIGTERM``. An empty string if no signal was received.
    """

    def __init__(self) -> None:
        self.received = ""
        self._before: dict[int, Any] = {}

    def listen(self, names: Sequence[str] = SIGNALS) -> None:
        """Install this object's handlers for the signals in ``names``, unless they are installed already.

        Signals that the platform lacks, such as SIGUSR1 on Windows, are skipped.

        Raises:
            UsageError: If called outside the main thread. Python lets only the main thread install signal handlers.
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
    """Check at the start of a job, rather than at its end, that the job can be queued again.

    Raises:
        UnsupportedError: If neither the cluster environment nor a hook plugin can put a job back into a queue.
    """
    able = [
        implementation
        for implementation in plugin_manager.hook.requeue.get_hookimpls()
        if not (implementation.wrapper or implementation.hookwrapper)  # a wrapper requeues nothing itself
        and getattr(implementation.function, "__func__", None) is not ClusterEnvironment.requeue
    ]
    if not able:
        raise UnsupportedError(
            f"requeue=True, but the cluster environment {cluster.name!r} has no queue",
            plugin=cluster.plugin,
            why="it does not implement requeue(), and no hook plugin does",
            hint="leave requeue out, or run under a scheduler; accelkit why --cluster shows what was recognised",
        )


class Preemption:
    """Stops a preempted job on all processes at the same step, and puts it back into the queue.

    Args:
        cluster: The cluster environment, which is polled if it overrides ``is_preempted``.
        rank_info: The ranks of this process. Only the main process calls the hook ``requeue``.
        collectives: The collectives of the job. They tell every process whether any process was told to stop, and whether the scheduler
            accepted the job again.
        plugin_manager: The manager of the plugins. Its hook ``job_preempted`` tells the plugins that the job is about to stop, and its hook
            ``requeue`` puts the job back into the queue.
        trackers: The trackers. When the processes learn of a preemption, the trackers write everything that was logged until then.
        has_to_requeue: Whether the job is put back into the scheduler's queue.
    """

    def __init__(
        self,
        cluster: ClusterEnvironment,
        rank_info: RankInfo,
        collectives: Collectives,
        plugin_manager: PluginManager,
        trackers: Trackers,
        *,
        has_to_requeue: bool,
    ) -> None:
        self.signals = StopSignals()
        self._cluster = cluster
        self._has_notices = has_notices(cluster)
        self._poll: PreemptionPoll | None = None
        self._rank_info = rank_info
        self._collectives = collectives
        self._plugin_manager = plugin_manager
        self._trackers = trackers
        self._has_to_requeue = has_to_requeue

    def watch(self) -> None:
        """Catch SIGTERM and SIGUSR1 (see ``StopSignals``), and poll the cluster environment if it overrides ``is_preempted``.

        Further calls have no effect until ``forget`` is called.

        Raises:
            UsageError: If the signals are not caught yet, and this is not the main thread.
            BrokenPluginError: If the cluster environment has to be polled and its ``preemption_poll_seconds`` is invalid.
        """
        self.signals.listen()
        if self._has_notices and self._poll is None:
            self._poll = PreemptionPoll(self._cluster)
            self._poll.start()

    def forget(self) -> None:
        """Stop watching. Forget the signals received and any preemption that the cluster environment has reported."""
        self.signals.forget()
        if self._poll is not None:
            self._poll.stop()
            self._poll = None

    def is_preempted(self) -> bool:
        """See ``Runtime.is_preempted``."""
        self.watch()
        has_notice = self._poll is not None and self._poll.is_preempted()
        is_preempted = self._collectives.any_process(has_notice or bool(self.signals.received))
        if is_preempted:
            self._trackers.flush(is_preempted=True)
        return is_preempted

    def stop(self, saved: Path) -> NoReturn:
        """Call the hook ``job_preempted``, requeue the job if requested, and exit.

        Args:
            saved: The checkpoint, which all processes must have finished saving.

        Raises:
            SystemExit: With status 0 if the scheduler accepted the job again, otherwise with status 143 (128 + SIGTERM).
            AccelkitError: If ``job_preempted`` raises an error or, on the main process only, if the job cannot be requeued.
        """
        hint = f"the checkpoint {saved} is complete and on disk; the job was not queued again"
        try:
            with self._plugin_manager.naming_failures("job_preempted", hint):
                self._plugin_manager.hook.job_preempted(path=saved)
        finally:  # the other processes wait for this one
            self._trackers.close("interrupted")
            self._collectives.wait_for_everyone()
        raise SystemExit(0 if self._requeue(hint) else 128 + signal.SIGTERM)

    def _requeue(self, hint: str) -> bool:
        """On the main process, call the hook ``requeue``. On all processes, return whether the scheduler accepted the job.

        If ``has_to_requeue`` is False, return False without calling the hook.

        Args:
            hint: The hint for the error that is raised if the hook fails. The hint says that the checkpoint is complete, and that the job
                was not queued again.

        Raises:
            AccelkitError: On the main process only, if the cluster environment cannot queue the job, or if the ``requeue`` of a plugin
                raises an error or returns anything but a bool or None. If this happens, the method returns False on the other processes.
        """
        if not self._has_to_requeue:
            return False
        answer = False
        try:
            if self._rank_info.is_main_process:
                with self._plugin_manager.naming_failures("requeue", hint):
                    found = self._plugin_manager.hook.requeue()
                if not isinstance(found, bool | None):
                    raise wrong_hook_result("requeue", found, "a bool or None", self._plugin_manager.other_owners("requeue"))
                answer = bool(found)
        finally:
            answer = bool(self._collectives.from_main(answer))
        return answer
