"""Polling of the cluster environment for notices of preemption. It runs in a thread, so that training steps do not wait for it."""

from __future__ import annotations

import threading
import time
import warnings

from accelkit.discovery.loading import describe
from accelkit.errors import BrokenPluginError
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.overrides import overrides

_PATIENCE = 6
"""The number of intervals after which the program is warned that a call has not returned, and after which a failed call is repeated."""
_LONGEST_INTERVAL = 3600.0
_STOP_SECONDS = 1.0


class PreemptionPoll:
    """Calls the cluster environment's ``is_preempted`` at regular intervals, in a background thread, until it returns True.

    The thread only records what happened. The program is warned of a failure when it next calls this object's ``is_preempted``.

    Args:
        cluster: The cluster environment, which overrides ``is_preempted``.

    Raises:
        BrokenPluginError: If the environment's ``preemption_poll_seconds`` is not a number greater than 0 and at most 3600.
    """

    def __init__(self, cluster: ClusterEnvironment) -> None:
        self._cluster = cluster
        self._interval = _interval(cluster)
        self._is_preempted = False
        self._failure = ""
        self._has_warned = False
        self._call_started: float | None = None
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accelkit-preemption", daemon=True)

    def start(self) -> None:
        """Start the thread, which immediately calls the cluster environment's ``is_preempted``."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to stop, and wait up to one second for it to end.

        If the cluster environment's ``is_preempted`` is still running after that time, the thread is left running. The thread then ends
        when ``is_preempted`` returns or the process exits.
        """
        self._is_stopping.set()
        self._thread.join(_STOP_SECONDS)

    def is_preempted(self) -> bool:
        """Return whether the environment has reported a preemption. Warn once, naming the plugin, if the environment fails or hangs."""
        if not self._has_warned:
            self._warn_of_failure()
        return self._is_preempted

    def _run(self) -> None:
        while True:
            self._call_started = time.monotonic()
            failure = self._ask()
            self._call_started = None
            self._failure = self._failure or failure
            if self._is_preempted or self._is_stopping.wait(self._interval * (_PATIENCE if failure else 1)):
                return

    def _ask(self) -> str:
        """Call the cluster environment's ``is_preempted`` and record the result.

        Returns:
            A description of the failure if the call failed, or else an empty string.
        """
        try:
            answer = self._cluster.is_preempted()
        except BaseException as error:
            return f"it raised {describe(error)}"
        if not isinstance(answer, bool):
            return f"it returned {answer!r:.80} ({type(answer).__name__}) instead of True or False"
        self._is_preempted = answer
        return ""

    def _warn_of_failure(self) -> None:
        started, limit = self._call_started, self._interval * _PATIENCE
        if self._failure:
            problem = f"{self._failure}. It is called again after {limit:g} s."
        elif started is not None and time.monotonic() - started > limit:
            problem = f"it has not returned for {limit:g} s. It is called again only after it has returned."
        else:
            return
        self._has_warned = True
        warnings.warn(
            f"is_preempted() of the cluster environment {self._cluster.name!r} ({self._cluster.plugin}) does not work: {problem} "
            "Until it works, only a signal announces a preemption.",
            RuntimeWarning,
            stacklevel=5,
        )


def has_notices(cluster: ClusterEnvironment) -> bool:
    """Return whether the cluster environment overrides ``is_preempted`` and therefore has to be polled."""
    return overrides(cluster, ClusterEnvironment, "is_preempted")


def _interval(cluster: ClusterEnvironment) -> float:
    seconds = cluster.preemption_poll_seconds
    if not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_INTERVAL:
        raise BrokenPluginError(
            f"preemption_poll_seconds of the cluster environment {cluster.name!r} is invalid",
            plugin=cluster.plugin,
            why=f"it is {seconds!r:.80}",
            hint=f"it must be a number of seconds greater than 0 and at most {_LONGEST_INTERVAL:g}",
        )
    return seconds
