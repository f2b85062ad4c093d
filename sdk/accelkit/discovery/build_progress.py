"""Progress display for the one-time builds of plugins, on standard error: a spinner on a terminal, otherwise a line
whenever the set of plugins that are being built changes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection
from types import TracebackType


class BuildNotice:
    """A notice shown while plugins run their one-time build.

    ``update`` shows the notice without a delay. The code that calls ``update`` checks for running builds only a few times a second, so
    there may be no notice for a build that finishes quickly.
    """

    def __init__(self) -> None:
        self._shown: frozenset[str] = frozenset()
        self._status = contextlib.ExitStack()

    def __enter__(self) -> BuildNotice:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._status.close()

    def update(self, plugins: Collection[str]) -> None:
        """Show that these plugins, each as ``dist==version``, are running their one-time build. If there are none, remove the notice."""
        building = frozenset(plugins)
        if building == self._shown:
            return
        self._status.close()
        self._shown = building
        if not building:
            return
        text = f"{', '.join(sorted(building))}: running the one-time build for this machine ..."
        if not sys.stderr.isatty():
            sys.stderr.write(text + "\n")
            return
        from rich.console import Console

        self._status.enter_context(Console(stderr=True).status(text))
