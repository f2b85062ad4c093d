"""Write the output of a job's processes to log files and to the screen."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import threading
import time
from pathlib import Path
from typing import BinaryIO

_CHUNK = 65536
_CUT = b"[...]"
_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 0.3
_LAST_ROUNDS = 16  # 16 chunks of 64 KiB are 1 MiB, the size of the largest pipe that Linux gives to an ordinary user


class Screen:
    """Standard output or standard error of this process, on which the output of several processes is shown.

    Rank 0's output is shown immediately. Lines of other ranks wait until rank 0 has finished its line, but only for about 0.3 seconds.
    After that time, rank 0's line is split, because it may be a progress bar that stays unfinished for a long time.
    """

    def __init__(self, target: BinaryIO) -> None:
        self._target: BinaryIO | None = target
        self._is_at_start = True
        self._waiting: list[bytes] = []
        self._since = 0.0

    def write(self, data: bytes) -> None:
        """Show rank 0's output unchanged.

        If ``data`` contains a newline, show the waiting lines of other ranks directly after the last newline.
        """
        lines, newline, rest = data.rpartition(b"\n")
        if newline:
            self._show(lines + newline)
            self._show_waiting()
        self._show(rest)
        self._is_at_start = not rest and (bool(newline) or self._is_at_start)

    def write_lines(self, data: bytes, prefix: bytes) -> None:
        """Show the lines in ``data``, each with ``prefix`` before it.

        If a line has carriage returns, only the text after the last of them is shown. Carriage returns at the end of a line are ignored."""
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += [prefix + line.rstrip(b"\r").rpartition(b"\r")[2] + b"\n" for line in data.split(b"\n")]
        if self._is_at_start:
            self._show_waiting()

    def flush(self, has_to_end: bool = False) -> None:
        """End rank 0's unfinished line, and show the waiting lines of other ranks.

        Does nothing if no line is waiting, or if ``has_to_end`` is False and no line has waited for more than 0.3 seconds.
        """
        if self._waiting and (has_to_end or time.monotonic() - self._since > _PATIENCE_SECONDS):
            self._show(b"\n")
            self._is_at_start = True
            self._show_waiting()

    def _show_waiting(self) -> None:
        self._show(b"".join(self._waiting))
        self._waiting.clear()

    def _show(self, data: bytes) -> None:
        """Write data to the stream. If the program that reads the stream has exited, as ``head`` does in a pipeline, discard the data."""
        if self._target is None or not data:
            return
        try:
            self._target.write(data)
            self._target.flush()
        except (OSError, ValueError):  # the stream was closed; the log files are still written
            self._target = None


@dataclasses.dataclass(slots=True)
class _Stream:
    pipe: int
    log: BinaryIO
    screen: Screen
    prefix: bytes
    rest: bytes = b""


class Streams:
    """A thread that reads the output of all processes from pipes, writes it to their log files and shows it on the screen.

    Rank 0's output is shown as it is printed. Output of other ranks is shown in whole lines, prefixed with the rank. If such a line is
    longer than 64 KiB, its beginning may be replaced with ``[...]`` on the screen.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._screens: set[Screen] = set()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, pipe: int, path: Path, screen: Screen, rank: int) -> None:
        """Copy the output of a process from ``pipe`` to the log file ``path`` and to ``screen``, until the pipe is closed.

        ``rank`` is the rank of the process. On the screen, each line of a rank other than 0 begins with the rank, as in ``[1]: ``.
        """
        prefix = b"[%d]: " % rank if rank else b""
        self._screens.add(screen)
        self._selector.register(pipe, selectors.EVENT_READ, _Stream(pipe, path.open("wb", buffering=0), screen, prefix))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._read, name="accelkit-streams", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read the remaining output, and close the pipes and the log files.

        Call this after the processes have ended. If another program still holds a pipe open, this call does not wait for that program.
        """
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._finish(key.data)
        for screen in self._screens:
            screen.flush(has_to_end=True)
        self._selector.close()

    def _read(self) -> None:
        rounds_left = _LAST_ROUNDS
        while self._selector.get_map() and rounds_left:
            is_closing = self._is_closing.is_set()
            ready = self._selector.select(0 if is_closing else _POLL_SECONDS)
            for key, _ in ready:
                self._pass_on(key.data)
            for screen in self._screens:
                screen.flush()
            if is_closing and not ready:
                return
            rounds_left -= is_closing

    def _pass_on(self, stream: _Stream) -> None:
        data = os.read(stream.pipe, _CHUNK)
        if not data:
            self._finish(stream)
            return
        with contextlib.suppress(OSError):  # a full disk must not stop the job
            stream.log.write(data)
        if not stream.prefix:
            stream.screen.write(data)
            return
        lines, newline, rest = (stream.rest + data).rpartition(b"\n")
        if newline:
            stream.screen.write_lines(lines, stream.prefix)
        stream.rest = rest if len(rest) <= _CHUNK else _CUT + rest[-_CHUNK:]

    def _finish(self, stream: _Stream) -> None:
        self._selector.unregister(stream.pipe)
        if stream.prefix and stream.rest:
            stream.screen.write_lines(stream.rest, stream.prefix)
        os.close(stream.pipe)
        stream.log.close()
