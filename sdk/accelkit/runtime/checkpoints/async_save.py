"""Save in a background thread. The program waits for this thread before it exits."""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable

from accelkit.errors import CheckpointError


class BackgroundSave:
    """A thread that runs one save at a time.

    If a save fails, the next ``wait`` raises the error. If the program exits without calling ``wait``, the error is printed.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        atexit.register(_report, weakref.ref(self))

    def start(self, work: Callable[[], object]) -> None:
        """Run ``work`` in a thread. The caller must call ``wait`` first, so that no other save is running."""
        self._thread = threading.Thread(target=self._run, args=(work,), name="accelkit-save", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the save that ``start`` began. Returns immediately if no save is running.

        Raises:
            Exception: The error of the last save, usually a CheckpointError, if the save failed during this call or before it. Each error
                is raised only once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if isinstance(error, CheckpointError):
            raise CheckpointError(
                error.what, why=error.why, hint=error.hint
            ) from error  # a new error, which has the traceback of this call
        if error is not None:
            try:
                raise error
            finally:
                del error  # a reference cycle through the traceback would keep the saved state in memory

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # wait() raises this error in the thread that calls it
            self._error = error


def _report(reference: weakref.ref[BackgroundSave]) -> None:
    save = reference()
    if save is not None and save._error is not None:
        text = f"accelkit: the last checkpoint could not be saved, and the program ended without waiting for it\n{save._error}"
        print(text, file=sys.stderr)  # noqa: T201 # no code is left that could raise the error
