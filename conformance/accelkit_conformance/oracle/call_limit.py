"""A time limit for calls to plugin code in this process. If a call exceeds the limit, the result of the test names the call and the line
that it was running, even if the call cannot be interrupted."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_GRACE_SECONDS = 1.0


class _TooSlowError(BaseException):
    """Raised in a call that exceeds the time limit. It does not inherit from Exception, so ``except Exception`` does not catch it."""


@contextlib.contextmanager
def limited(subject: Subject, what: str, seconds: float) -> Iterator[None]:
    """Context manager that limits the time of a call to the plugin. The call must be made in the main thread.

    ``what`` is sent to the runner, which can then report it if this process dies or stops answering. After ``seconds``, the
    call is interrupted. If the call has not returned one second later, for example because it is not running Python code, this process
    ends.

    Args:
        subject: The plugin under test.
        what: A description of the call for messages, such as the name of a hook.
        seconds: The time limit in seconds.

    Raises:
        AssertionError: If the block exceeds the time limit. The message names the line at which the block was interrupted.
    """

    interrupted: list[str] = []

    def stop(number: int, frame: FrameType | None) -> None:
        interrupted.append(_place(frame))
        raise _TooSlowError

    def give_up() -> None:
        where = _place(sys._current_frames().get(caller))
        subject.tell({"hung": f"{what} did not return within {seconds:g} s, and cannot be interrupted: it was at {where}"})

    caller = threading.get_ident()
    subject.tell({"doing": what})
    before = signal.signal(signal.SIGALRM, stop)
    timer = threading.Timer(seconds + _GRACE_SECONDS, give_up)
    timer.daemon = True
    timer.start()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:  # the plugin, or accelkit, may have replaced the _TooSlowError with another error
        error = raised
        if not interrupted:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        timer.cancel()
        subject.tell({"doing": ""})
    if interrupted:
        raise AssertionError(f"{what} did not return within {seconds:g} s: it was at {interrupted[0]}") from error


def _place(frame: FrameType | None) -> str:
    return "an unknown place" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} ({frame.f_code.co_name})"
