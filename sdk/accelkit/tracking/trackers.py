"""The trackers of a Runtime. They write on the main process only. If a tracker fails, the program continues without this tracker."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from accelkit.errors import one_line, shortened
from accelkit.tracking.names import trackers_of
from accelkit.tracking.run_files import new_run_folder
from accelkit.tracking.tracker import FolderTracker, Outcome, Tracker
from accelkit.tracking.values import checked_step, hyperparameters, plain_values


class Ranks(Protocol):
    @property
    def is_main_process(self) -> bool: ...


class Trackers:
    """The trackers to which a Runtime passes everything that the program logs.

    The trackers are opened by the first ``log``. A program can therefore load a checkpoint first, and then continue the run during which
    the checkpoint was saved.

    Args:
        given: Names, trackers and functions, as given to ``Runtime``.
        ranks: An object that knows whether this process is the main process. Only the main process writes.
        describe: A function that describes the selected plugins and devices. The description is recorded with the hyperparameters.

    Attributes:
        objects: The trackers, in the order of ``given``. For a function, or for a tracker from another library, this is the object that
            the user gave, not the ``Tracker`` that wraps the object.

    Raises:
        UsageError: On every process, if a tracker is unknown.
        UnavailableError: On every process, if the package of a tracker is not installed.
    """

    def __init__(self, given: Iterable[Any], ranks: Ranks, *, describe: Callable[[], Mapping[str, Any]]) -> None:
        self._trackers, self.objects = trackers_of(given)
        self._active = list(self._trackers) if ranks.is_main_process else []
        self._describe = describe
        self._hyperparameters: dict[str, Any] = {}
        self._states: dict[str, Any] = {}
        self._next_step = 0
        self._run_folder: str | None = None  # for trackers without a folder of their own; None until the first of them needs it
        self._process: int | None = None
        self._is_preempted = False

    def log(self, values: Mapping[str, Any], step: int | None) -> None:
        """See ``Runtime.log``."""
        if not self._active:
            return
        plain = plain_values(values)
        number = self._next_step if step is None else step if type(step) is int and step >= 0 else checked_step(step)
        self._open()
        for tracker in tuple(self._active):  # _call would take longer, and a program may log in every step
            try:
                tracker.log(plain, number)
            except Exception as error:
                self._deactivate(tracker, "log", error, stacklevel=4)
        self._next_step = number + 1

    def log_hyperparameters(self, values: Any) -> None:
        """See ``Runtime.log_hyperparameters``."""
        if not self._active:
            return
        new = hyperparameters(values)
        self._hyperparameters |= new
        if self._process is not None:
            self._call_each("log_hyperparameters", new)

    def flush(self, *, is_preempted: bool = False) -> None:
        """Write everything that was logged.

        Args:
            is_preempted: Whether the job was told to stop. If so, the run counts as interrupted, not as finished, when the program ends.
        """
        self._is_preempted = self._is_preempted or is_preempted
        if self._process is not None:
            self._call_each("flush")

    def close(self, outcome: Outcome) -> None:
        """End the run. If the program logs again, the same run is continued.

        If the program has logged only hyperparameters, the run is recorded only if ``outcome`` is ``finished``.
        """
        if self._hyperparameters and outcome == "finished" and self._active:
            self._open()
        if self._process != os.getpid():  # not open, or open in the process from which this one was forked
            return
        atexit.unregister(self._close_at_exit)
        self._states = self.state()
        self._call_each("close", outcome)
        self._process = None
        self._hyperparameters = {}

    def state(self) -> dict[str, Any]:
        """Write everything that was logged, and return what a checkpoint saves.

        A checkpoint saves the next step, the folder of the run, and each tracker's ``state()``. If this process has no working trackers,
        the result is empty.
        """
        if not self._active:
            return {}
        common = {"next_step": self._next_step, "run_folder": self._run_folder or self._states.get("run_folder")}
        if self._process is None:
            return common | {"trackers": self._states.get("trackers", {})}
        self.flush()
        states = {self._key(tracker): self._call(tracker, "state") for tracker in tuple(self._active)}
        return common | {"trackers": {key: state for key, state in states.items() if state}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Make each tracker continue the run that it was recording when the loaded checkpoint was saved.

        A tracker that cannot continue that run, for example because it already writes into another folder, begins a new run. If no
        tracker was in use when the checkpoint was saved, ``state`` is empty, and this method does nothing. It also does nothing if this
        process has no working trackers.
        """
        if not state or not self._active:
            return
        self._states, self._next_step = dict(state), state["next_step"]
        if self._process is not None:
            for tracker in tuple(self._active):
                self._call(tracker, "rewind", saved := self._state_of(tracker))
                if saved is None and any(one is tracker for one in self._active):  # it may have begun a new run
                    self._call(tracker, "log_hyperparameters", self._recorded_hyperparameters())

    def _open(self) -> None:
        if self._process is not None:
            return
        self._process = os.getpid()
        for tracker in tuple(self._active):
            if isinstance(tracker, FolderTracker):
                tracker.run_folder = self._folder_of_run
            self._call(tracker, "open", self._state_of(tracker))
        self._call_each("log_hyperparameters", self._recorded_hyperparameters())
        atexit.register(self._close_at_exit)

    def _folder_of_run(self) -> Path:
        if self._run_folder is None:
            self._run_folder = self._states.get("run_folder") or str(new_run_folder())
        return Path(self._run_folder)

    def _recorded_hyperparameters(self) -> dict[str, Any]:
        return self._hyperparameters | {"accelkit": self._describe()}

    def _state_of(self, tracker: Tracker) -> Mapping[str, Any] | None:
        state: Mapping[str, Any] | None = self._states.get("trackers", {}).get(self._key(tracker))
        return state

    def _key(self, tracker: Tracker) -> str:
        """Return a tracker's key in checkpoints: its name and its index among the trackers with this name, such as ``csv_0``."""
        alike = [one for one in self._trackers if one.name == tracker.name]
        number = next(index for index, one in enumerate(alike) if one is tracker)
        return f"{tracker.name}_{number}"

    def _call_each(self, method: str, *arguments: Any) -> None:
        for tracker in tuple(self._active):
            self._call(tracker, method, *arguments)

    def _call(self, tracker: Tracker, method: str, *arguments: Any) -> Any:
        """Call a method of a tracker, and return its result. If the method fails, warn, never call the tracker again, and return None."""
        try:
            return getattr(tracker, method)(*arguments)
        except Exception as error:
            self._deactivate(tracker, method, error, stacklevel=6)
            return None

    def _deactivate(self, tracker: Tracker, method: str, error: Exception, stacklevel: int) -> None:
        self._active = [one for one in self._active if one is not tracker]
        reason = shortened(one_line(f"{type(error).__name__}: {error}"), 500)
        warnings.warn(
            f"the tracker {tracker.name!r} failed and is not called again: {method}() raised {reason}. The run continues without it.",
            RuntimeWarning,
            stacklevel=stacklevel,
        )

    def _close_at_exit(self) -> None:
        has_failed = getattr(sys, "last_value", None) is not None
        self.close("interrupted" if self._is_preempted else "failed" if has_failed else "finished")
