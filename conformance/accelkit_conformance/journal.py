"""The journal of a run: each result is written as it comes, so that a run that was killed is continued, and one that failed is run
again in part."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from typing import IO, Any

from accelkit import UsageError, check_private, private_folder, untrusted_json
from accelkit.discovery.verdict_cache import cache_folder
from accelkit.regular_file import read_regular
from accelkit_conformance.results import Result

_LARGEST = 500_000_000  # bytes of a journal


@dataclasses.dataclass(frozen=True)
class _Time:
    at: float = 0.0


class Journal:
    """Lines of JSON in the user's cache folder: a head, what the device said, then a line for each result.

    Args:
        key: What the run is about. Two runs with one key are about the same tests of the same installation.
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
        """Take in what an earlier run wrote; a last line that was cut off is dropped. Whether there was one."""
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
        """Take in one line.

        Raises:
            ValueError: If it is none of ours.
        """
        if not isinstance(entry, dict):
            raise ValueError("it is no object")
        if "id" in entry:
            result, time = Result.from_dict(entry), untrusted_json.decode(_Time, entry)
            self.results[result.id] = result
            self.seconds = time.at or self.seconds
        elif "started" in entry:
            self.started = _date(entry["started"])
        elif isinstance(entry.get("hello"), dict):
            self.hello = entry["hello"]
        self.is_complete = "complete" in entry

    def open(self, started: str, *, is_new: bool) -> None:
        """Start writing: anew, or after what is there."""
        private_folder(self.folder)
        if is_new:
            for log in self.folder.glob("worker-*.log"):
                log.unlink()
        self._file = open(self._path, "w" if is_new else "a", encoding="utf-8", opener=_opened_for_owner)  # noqa: SIM115 # open as long as the run is
        if is_new:
            self.started = started
            self._write({"started": started, "key": self._key})
        else:
            self._file.write("\n")  # after a line that was cut off

    def say_hello(self, hello: Mapping[str, Any]) -> None:
        """What the first worker said of the device."""
        self.hello = dict(hello)
        self._write({"hello": self.hello})

    def add(self, result: Result, at: float) -> None:
        """Keep a result; ``at`` is seconds since the run began."""
        self.results[result.id] = result
        self.seconds = at
        self._write(result.as_dict() | {"at": round(at, 2)})

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
        raise ValueError("it is no date")
    return datetime.datetime.fromisoformat(text).isoformat()


def _opened_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def nothing_to_continue(what: str, option: str) -> UsageError:
    return UsageError(f"{option}: there is no {what} of these tests of this installation", hint=f"run it without {option} first")
