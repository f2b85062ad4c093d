"""Find the failure that most likely caused the failures of a job's other processes, and describe it."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit.discovery.subprocess_env import signal_name

ERROR_FILE = "error.json"
PEER_SECONDS = 5.0
"""The longest time, in seconds, that the launcher waits for a peer to end after a process has lost its connection to the peer."""

_SHOWN_LINES = 20
_LOST_PEER = re.compile(
    r"connection (was )?(likely )?(reset|closed|refused)|broken pipe|remote process exited|ncclRemoteError|failed to recv, got 0 bytes"
    r"|timed? ?out waiting|connectFullMesh|DistNetworkError|socket.*timed out",
    re.IGNORECASE,
)
"""The errors that gloo (pair.cc), NCCL (ncclRemoteError) and torch's TCPStore raise if a peer has gone away or never connected."""


@dataclasses.dataclass(slots=True)
class Ending:
    """The end of one process: when and how it ended, and the error that it recorded.

    Attributes:
        rank: The global rank of the process.
        folder: The folder that holds the logs of the process.
        exit_code: The exit code, or minus the number of the signal that killed the process, as in ``subprocess.Popen.returncode``. None
            while the process runs.
        at: The time at which the launcher saw the process end, in seconds since the epoch.
        sent: The signal with which the launcher ended the process. None if the process ended by itself.
        record: What the process wrote about its error (see ``worker_main.write_error``). None if it wrote nothing, or if a signal that the
            launcher sent caused the error.
    """

    rank: int
    folder: Path
    exit_code: int | None = None
    at: float = 0.0
    sent: signal.Signals | None = None
    record: dict[str, Any] | None = None

    @property
    def error_file(self) -> Path:
        """The file to which the process writes its error."""
        return self.folder / ERROR_FILE

    def read(self, began: float) -> None:
        """Set ``record`` to what the process wrote about its error.

        ``began`` is the time at which the launcher began to end the processes, in seconds since the epoch. If the launcher sent a signal
        to the process, an error that the process wrote after ``began`` is ignored, because the signal caused it.
        """
        record = read_record(self.error_file)
        is_own = record is not None and (self.sent is None or float(record["time"]) < began)
        self.record = record if is_own else None

    @property
    def has_failed(self) -> bool:
        """Whether the process failed for a reason other than a signal that the launcher sent."""
        return self.record is not None or (self.sent is None and bool(self.exit_code))

    @property
    def failed_at(self) -> float:
        """The time of the failure. If the process recorded its error, this is the recorded time, which precedes the end of the process."""
        return float(self.record["time"]) if self.record else self.at

    @property
    def has_lost_a_peer(self) -> bool:
        """Whether the process failed because another process had ended or did not respond."""
        return self.record is not None and _has_lost_a_peer(self.record)

    @property
    def names_a_peer(self) -> bool:
        """Whether the error is a ``CollectiveError``, which names the other ranks that did not take part."""
        return self.record is not None and str(self.record["error"]).startswith("CollectiveError: ")

    @property
    def shell_code(self) -> int:
        """The exit code of a failed process, which is never 0.

        If a signal killed the process, the exit code is 128 plus the signal's number, as in a shell. If the launcher ended the process, or
        the process ended with 0, this is the exit code that the process recorded with its error, or 1.
        """
        code = self.exit_code if self.exit_code and self.sent is None else int((self.record or {}).get("exit_code", 1))
        return 128 - code if code < 0 else code or 1

    def __str__(self) -> str:
        if self.record is not None and self.record["error"].startswith("SystemExit"):
            return f"exit code {self.shell_code}"
        if self.record is not None:
            return str(self.record["error"]).partition("\n")[0][:200]
        if self.sent is not None:
            return f"was running, and was ended with {self.sent.name}"
        if not self.exit_code:
            return "finished"
        return f"killed by {signal_name(self.exit_code)}" if self.exit_code < 0 else f"exit code {self.exit_code}"


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the error record that a process wrote to ``path``, or None if the record is missing or incomplete."""
    try:
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):  # a full disk leaves no file or half of one
        return None
    return record


def is_waiting_for_lost_peer(endings: Sequence[Ending]) -> bool:
    """Return whether the failed processes may have lost their connection to a process that is still running.

    The result is True if all of these conditions hold:

    - At least one process is still running.
    - Every process that has ended has recorded an error.
    - Every recorded error reports a lost peer, that is, another process that ended or did not respond.

    A peer may still be running for a while after its connections have closed, for example because it is writing a core file. If the
    launcher ended this peer immediately, it could not report whether the peer had finished or crashed. The launcher therefore waits for up
    to ``PEER_SECONDS`` first.
    """
    records = [read_record(ending.error_file) for ending in endings]
    if any(record is not None and not _has_lost_a_peer(record) for record in records):
        return False
    ended = [record for record, ending in zip(records, endings, strict=True) if ending.exit_code is not None]
    return len(ended) < len(endings) and None not in ended


def may_be_caused_elsewhere(endings: Sequence[Ending]) -> bool:
    """Return whether the loss of a machine may have caused all failures so far.

    The loss of a machine causes three kinds of failures in the processes of other machines: a torch error that reports a lost peer, a
    CollectiveError, and an abort with SIGABRT by NCCL's watchdog.
    """
    for ending in endings:
        record = read_record(ending.error_file)
        if record is None and (not ending.exit_code or ending.exit_code == -signal.SIGABRT):
            continue
        if record is None or not (_has_lost_a_peer(record) or str(record["error"]).startswith("CollectiveError: ")):
            return False
    return True


def _has_lost_a_peer(record: Mapping[str, Any]) -> bool:
    return any(_LOST_PEER.search(text) for text in (record["error"], *record["causes"]))


def _likelihood(ending: Ending) -> tuple[bool, bool, float]:
    """Return a sort key. The failure with the smallest key most likely caused the other failures."""
    return ending.has_lost_a_peer, ending.has_lost_a_peer and not ending.names_a_peer, ending.failed_at


def first(endings: Sequence[Ending]) -> Ending | None:
    """Return the failure that most likely caused the other failures, or None if no process failed.

    A failure that is not due to a lost peer is preferred. If all are due to a lost peer, a CollectiveError is preferred, because torch's
    own errors do not say which rank is missing. If several failures are left, the earliest is returned.
    """
    failed = [ending for ending in endings if ending.has_failed]
    return min(failed, key=_likelihood, default=None)


def describe(endings: Sequence[Ending], cause: Ending) -> str:
    """Return the traceback of the cause, followed by a list that says how each process ended.

    If the cause raised no exception, the last lines of its standard error replace the traceback. If the cause lost a peer, a final line
    names the ranks that the cause may have been waiting for (see ``_awaited``).
    """
    lines = ["", *_evidence(cause), ""]
    for ending in sorted(endings, key=lambda ending: ending.rank):
        after = ending.failed_at - cause.failed_at
        when = " (first)" if ending is cause else f" ({after:+.3f} s)" if ending.has_failed else ""
        lines.append(f"  rank {ending.rank}: {ending}{when}")
    if cause.has_lost_a_peer:
        lines.append(f"  rank {cause.rank} failed because another process did not respond; {_awaited(endings)}")
    return "\n".join(lines)


def _awaited(endings: Sequence[Ending]) -> str:
    """Return a phrase that names the ranks that the first failed process may have been waiting for.

    The phrase names the ranks of this machine that were still running when the launcher ended them. If there are none, the phrase names the
    ranks of this machine that had finished. If every process of this machine failed, the phrase advises the user to compare the error with
    the errors of the other ranks.
    """
    others = sorted((ending for ending in endings if not ending.has_failed), key=lambda ending: ending.rank)
    if late := [str(ending.rank) for ending in others if ending.sent is not None]:
        return f"it was possibly waiting for rank {', '.join(late)}"
    if done := [str(ending.rank) for ending in others if ending.exit_code == 0]:
        return f"it was possibly waiting for rank {', '.join(done)}, which had finished: look for a call that only some processes make"
    return "compare the error with the errors of the other ranks, including those on the other machines of the job"


def _evidence(cause: Ending) -> list[str]:
    if cause.record is not None:
        return str(cause.record["traceback"]).rstrip().splitlines()
    log = cause.folder / "stderr.log"
    try:
        lines = log.read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    if not lines:
        return ["  it raised no exception and wrote nothing to standard error"]
    return [f"  it raised no exception; the last lines of its standard error ({log}) are:", *lines[-_SHOWN_LINES:]]
