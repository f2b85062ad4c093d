"""Save in a background thread. The program waits for this thread before it exits.

If the last save of a program has failed and nothing has raised its error, the error is printed when the program exits, and the exit status
is 1, so that a scheduler does not regard the job as successful.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable

from accelkit.errors import CheckpointError


class BackgroundSave:
    """A thread that runs one save at a time.

    If a save fails, the next ``wait`` raises the error.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

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
        _failed.discard(self)
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
            _failed.add(self)


_failed: set[BackgroundSave] = set()


@atexit.register
def _report() -> None:
    for save in _failed:
        text = f"accelkit: the last checkpoint could not be saved, and the program ended without waiting for it\n{save._error}"
        print(text, file=sys.stderr)  # noqa: T201 # no code is left that could raise the error


class _ExitStatus:
    """Ends the process with status 1 when Python deletes the global variables of this module, if a save has failed.

    When Python waits for threads at exit, an exception can no longer change the exit status. It deletes the variables at the very end,
    after all ``atexit`` functions have run and the standard streams have been flushed, so ``os._exit`` skips nothing that Python guarantees
    to do.
    """

    def __init__(self) -> None:
        self._failed, self._is_ending, self._exit = _failed, sys.is_finalizing, os._exit

    def __del__(self) -> None:
        if self._failed and self._is_ending():
            self._exit(1)


_exit_status = _ExitStatus()
