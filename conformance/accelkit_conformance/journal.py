"""The journal of a run.

Each result is written as soon as it is known, so that an interrupted run can be resumed and the failed tests of a run can be run
again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

from accelkit import UsageError, check_private, private_folder, untrusted_json
from accelkit.discovery.verdict_cache import cache_folder
from accelkit.regular_file import read_regular
from accelkit_conformance.results import Result

_LARGEST = 500_000_000  # maximum size of a journal in bytes


@dataclasses.dataclass(frozen=True)
class _Time:
    at: float = 0.0


class Journal:
    """A file of JSON lines in the user's cache folder, which records a run.

    The first line has the key and the time at which the run started. Each further line has the description of the device, one result, a
    list of tests whose results are dropped, or a note that the run is complete.

    Args:
        key: The identity of the run. Two runs with the same key run the same tests on the same installation.
    """

    def __init__(self, key: Mapping[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
        self.folder = cache_folder() / "conformance" / digest
        self._path = self.folder / "journal.jsonl"
        self._key = dict(key)
        self._file: IO[str] | None = None
        self.hello: dict[str, Any] = {}
        self.results: dict[str, Result] = {}
        self.started, self.seconds, self.is_complete = "", 0.0, False

    def read(self) -> bool:
        """Read the journal of an earlier run and return whether there is one. Invalid lines, such as a truncated last line, are ignored.

        Raises:
            UsageError: If the journal cannot be read, or is larger than 500 MB.
            UntrustedFileError: If another user could have written the journal.
        """
        if not self._path.exists():
            return False
        try:
            check_private(self._path)
            lines = read_regular(self._path, _LARGEST).decode("utf-8", "replace").splitlines()
        except OSError as error:
            raise UsageError(f"the journal {self._path} cannot be read", why=str(error), hint=f"remove {self.folder}") from error
        for line in lines:
            with contextlib.suppress(ValueError):
                self._take(untrusted_json.parse(line))
        return bool(self.started)

    def _take(self, entry: object) -> None:
        """Apply one line of the file to this journal.

        Raises:
            ValueError: If ``entry`` is not a valid line of a journal.
        """
        if not isinstance(entry, dict):
            raise ValueError("it is not an object")
        if "id" in entry:
            result, time = Result.from_dict(entry), untrusted_json.decode(_Time, entry)
            self.results[result.id] = result
            self.seconds = time.at or self.seconds
        elif isinstance(entry.get("dropped"), list):
            for test in entry["dropped"]:
                self.results.pop(str(test), None)
        elif "started" in entry:
            self.started = _date(entry["started"])
        elif isinstance(entry.get("hello"), dict):
            self.hello = entry["hello"]
        self.is_complete = "complete" in entry

    def open(self, started: str, *, is_new: bool) -> None:
        """Open the journal for writing.

        Args:
            started: The date and time at which the run starts, in ISO 8601.
            is_new: Whether to start a new journal instead of appending to the existing journal. If True, the workers' log
                files from earlier runs are removed too.
        """
        private_folder(self.folder)
        if is_new:
            for log in self.folder.glob("worker-*.log"):
                log.unlink()
        self._file = open(self._path, "w" if is_new else "a", encoding="utf-8", opener=_opened_for_owner)  # noqa: SIM115 # stays open until the run ends
        if is_new:
            self.started = started
            self._write({"started": started, "key": self._key})
        else:
            self._file.write("\n")  # the last line may be truncated

    def say_hello(self, hello: Mapping[str, Any]) -> None:
        """Record how the first worker described the device."""
        self.hello = dict(hello)
        self._write({"hello": self.hello})

    def add(self, result: Result, at: float) -> None:
        """Record a result. ``at`` is the duration of the run so far in seconds, excluding interruptions."""
        self.results[result.id] = result
        self.seconds = at
        self._write(result.as_dict() | {"at": round(at, 2)})

    def drop(self, tests: Sequence[str]) -> None:
        """Forget the results of the given tests, so that a resumed run runs these tests again."""
        for test in tests:
            del self.results[test]
        self._write({"dropped": list(tests)})

    def close(self, *, is_complete: bool) -> None:
        if self._file is None:
            return
        if is_complete:
            self._write({"complete": True})
        self._file.close()
        self._file = None

    def _write(self, entry: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno()) if "id" not in entry else None


def _date(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError("it is not a date")
    return datetime.datetime.fromisoformat(text).isoformat()


def _opened_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def nothing_to_continue(what: str, option: str) -> UsageError:
    """Return an error that says that ``option`` cannot be used, because there is no earlier run to continue.

    ``what`` describes the missing run, for example ``interrupted run``.
    """
    return UsageError(f"{option}: there is no {what} of these tests with this installation", hint=f"run the command without {option} first")
