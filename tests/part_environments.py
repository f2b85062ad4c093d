"""The separate environments of parts of the test suite, which are built while earlier parts run, and in CI are removed after use."""

from __future__ import annotations

import collections
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from suite_parts import ROOT, Part

GB = 1e9


class Environments:
    """The environments that some parts need besides the one of all parts. A thread builds one after the other, in the order of the parts.

    Args:
        parts: The parts that will run, in this order.
        logs: The folder for the output of each build.
        remove: Remove each environment after its last part. Only one large environment, one whose part has ``disk``, exists at a time then.
    """

    def __init__(self, parts: Sequence[Part], logs: Path, *, remove: bool) -> None:
        self._logs, self._remove = logs, remove
        self._first_parts: dict[str, Part] = {}
        for part in parts:
            if part.environment:
                self._first_parts.setdefault(part.environment, part)
        self._parts_left = collections.Counter(part.environment for part in parts)
        self._built = {environment: threading.Event() for environment in self._first_parts}
        self._removed = {environment: threading.Event() for environment in self._first_parts}
        self._shortages: dict[str, str] = {}
        self._thread = threading.Thread(target=self._build_all, daemon=True)
        self.least_free_disk = free_disk()
        """The smallest free disk space that was seen before and after each part and each build, in bytes."""

    def start(self) -> None:
        """Start the thread. Later calls do nothing."""
        if not self._thread.ident:
            self._thread.start()

    def wait_for(self, part: Part) -> str:
        """Wait until the environment of a part is built, or its build has failed, in which case the part itself reports the reason.

        Returns:
            Why the part cannot run on this machine, or an empty string.
        """
        if not part.environment:
            return ""
        self.start()
        self._built[part.environment].wait()
        return self._shortages.get(part.environment, "")

    def end(self, part: Part) -> None:
        """Remove the environment of a part that has ended, if no other part needs it and environments are to be removed."""
        self._note_free_disk()
        self._parts_left[part.environment] -= 1
        if part.environment and self._remove and not self._parts_left[part.environment]:
            shutil.rmtree(ROOT / part.environment, ignore_errors=True)
            self._removed[part.environment].set()

    def _build_all(self) -> None:
        large: list[str] = []
        for environment, part in self._first_parts.items():
            for earlier in large if self._remove and part.disk else ():
                self._removed[earlier].wait()
            if shortage := self._shortage(part):
                self._shortages[environment] = shortage
            else:
                self._build(part)
                large += [environment] if part.disk else []
            self._built[environment].set()

    def _shortage(self, part: Part) -> str:
        free = free_disk()
        if (ROOT / part.environment / ".ready").exists() or free >= part.disk * GB:
            return ""
        return f"needs {part.disk} GB of free disk, and {free / GB:.0f} GB are free"

    def _build(self, part: Part) -> None:
        self._note_free_disk()
        with (self._logs / f"setup-{part.name}.log").open("w") as log:
            subprocess.run(["nice", "make", f"setup-{part.name}"], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
        self._note_free_disk()

    def _note_free_disk(self) -> None:
        self.least_free_disk = min(self.least_free_disk, free_disk())


def free_disk() -> int:
    """Return the free disk space for this repository, in bytes."""
    return shutil.disk_usage(ROOT).free
