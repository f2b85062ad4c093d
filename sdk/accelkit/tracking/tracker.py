"""The base class of trackers, and the base class of trackers that write files."""

from __future__ import annotations

import abc
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from accelkit.errors import UnavailableError
from accelkit.tracking.run_files import new_run_folder

Scalar = bool | int | float | str
Outcome = Literal["finished", "failed", "interrupted"]
"""The way in which a run ended. A run counts as interrupted if it is to be continued after a preemption, or from a loaded checkpoint."""


class Tracker(abc.ABC):
    """Base class of trackers. A tracker writes the values of one run to a file or a service.

    Write a subclass to support a service that accelkit does not know.

    A Runtime calls ``check`` on every process when the Runtime is created. All other methods are called on the main process only. The first
    of them to be called is ``open``, at the first ``rt.log``. If the program logs only hyperparameters, ``open`` is called when the run is
    finished. If the program logs again after ``close``, ``open`` is called again. If a method other than ``check`` raises an exception, the
    Runtime warns once and no longer calls the tracker.

    Attributes:
        name: The name of the tracker in warnings and checkpoints. Only accelkit's own trackers can also be selected by name, as in
            ``Runtime(trackers=["csv"])``.
        package: The package to install with pip. An empty string if the tracker needs none.
        module: The name under which the package is imported. ``check`` looks for a module of this name.
    """

    name: str = ""
    package: ClassVar[str] = ""
    module: ClassVar[str] = ""

    def check(self) -> None:
        """Check that the package is installed, without importing it. Called on every process when the Runtime is created.

        Raises:
            UnavailableError: If the package is not installed.
        """
        if self.module and importlib.util.find_spec(self.module) is None:
            raise UnavailableError(
                f"the tracker {self.name!r} needs the package {self.package}",
                why=f"the module {self.module} is not installed in this environment",
                hint=f"pip install {self.package}",
            )

    def open(self, state: Mapping[str, Any] | None) -> None:  # noqa: B027 # need not be overridden
        """Begin a new run, or continue an earlier one.

        Args:
            state: What ``state()`` returned for the run that is to be continued. If the program has loaded a checkpoint and the run has not
                been closed since, this is the result saved in the checkpoint. Otherwise, it is the result from just before the last
                ``close``. None for a new run, or if the result was empty.
        """

    @abc.abstractmethod
    def log(self, values: Mapping[str, Scalar], step: int) -> None:
        """Record values. Called by ``rt.log``.

        Args:
            values: The values by name. Every value is a plain bool, int, float or str.
            step: The step to which the values belong. It is at least 0. It may be equal to or less than the step of an earlier call.
        """

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:  # noqa: B027 # need not be overridden
        """Record hyperparameters, a dict that may contain further dicts.

        The Runtime calls this after ``open``, and again whenever the program logs further hyperparameters. In the first call after
        ``open``, ``values["accelkit"]`` describes the selected plugins and devices.
        """

    def flush(self) -> None:  # noqa: B027 # need not be overridden
        """Write everything that was logged, so that it is not lost if this process is killed.

        Called before ``close``, when a checkpoint is saved, and when the job is preempted.
        """

    def close(self, outcome: Outcome) -> None:  # noqa: B027 # need not be overridden
        """Write everything that was logged, and end the run.

        Args:
            outcome: The way in which the run ended.
        """

    def state(self) -> dict[str, Any]:
        """Return what ``open`` needs to continue the run from this point, such as the id of the run.

        The Runtime calls this method when it saves a checkpoint, and before it calls ``close``. In both cases, it calls ``flush`` first.
        The result is saved in checkpoints, so it must consist of plain values such as numbers and strings. The default returns an empty
        dict. If the result is empty, ``open`` and ``rewind`` get None instead.
        """
        return {}

    def rewind(self, state: Mapping[str, Any] | None) -> None:
        """Go back to the point at which a checkpoint was saved.

        Called when the program loads the checkpoint, if ``open`` has been called and the run has not been closed since.

        The default calls ``close("interrupted")`` and ``open(state)``.

        Args:
            state: The result of ``state()`` in the checkpoint. None if the checkpoint has no state of this tracker, or if that
                result was empty.
        """
        self.close("interrupted")
        self.open(state)


class FolderTracker(Tracker):
    """A tracker that writes files into a folder.

    Args:
        folder: The folder. None means the folder of the run, ``runs/<date>_<time>``, which is chosen when the run begins. All trackers of a
            Runtime that have ``folder=None`` share the folder of the run.

    Attributes:
        folder: The folder. If the argument ``folder`` is None, this attribute is None until the run begins.
        run_folder: A function that returns the folder of the run. The Runtime sets this attribute before it calls ``open``.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.run_folder: Callable[[], Path] = new_run_folder

    def position(self, state: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Create the folder, and decide whether to continue a run.

        A subclass calls this method at the beginning of ``open``, and passes the argument of ``open``.

        Returns:
            ``state`` if a run in this folder saved it. The subclass must then continue that run. None if the subclass must begin a new run.
        """
        if self.folder is None:
            self.folder = self.run_folder()
        self.folder.mkdir(parents=True, exist_ok=True)
        return state if state and Path(state["folder"]).resolve() == self.folder.resolve() else None

    def state(self) -> dict[str, Any]:
        return {"folder": str(self.folder)}
