"""Progress bars. The main process draws them with rich, if its standard error is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Generic, TypeVar

from accelkit.runtime.rank_info import RankInfo

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")


class ProgressBar(Generic[T]):
    """An iterable over the items of another iterable. Each pass draws a bar, if this process draws bars.

    Args:
        bars: The progress bars of this process.
        iterable: The items.
        description: The text before the bar.
        total: The number of items; None if it is not known.
    """

    def __init__(self, bars: ProgressBars, iterable: Iterable[T], description: str, total: int | None) -> None:
        self._bars = bars
        self._iterable = iterable
        self._description = description
        self._total = total

    def __len__(self) -> int:
        """Return the length of the iterable.

        Raises:
            TypeError: If the iterable has no length.
        """
        return len(self._iterable)  # type: ignore[arg-type] # raises the usual error

    def __iter__(self) -> Iterator[T]:
        if not self._bars.are_drawn():
            return iter(self._iterable)
        return self._draw()

    def _draw(self) -> Iterator[T]:
        with self._bars.task(self._description, self._total) as (display, task):
            number = 0
            for number, item in enumerate(self._iterable, 1):
                yield item
                display.update(task, completed=number)
            display.update(task, total=number)  # the total was unknown or wrong


class ProgressBars:
    """The progress bars of a process. A single live display of the ``rich`` library draws them one below another.

    A nested bar is removed when it ends. The outermost bar stays on the screen.

    Args:
        rank_info: The ranks of this process. Only the main process draws bars.
    """

    def __init__(self, rank_info: RankInfo) -> None:
        self._rank_info = rank_info
        self._display: Progress | None = None
        self._num_active = 0

    def bar(self, iterable: Iterable[T], description: str, total: int | None) -> ProgressBar[T]:
        """See ``Runtime.progress``."""
        if total is None and isinstance(iterable, Sized):
            with contextlib.suppress(TypeError):  # a DataLoader of an iterable dataset has no length
                total = len(iterable)
        return ProgressBar(self, iterable, description, total)

    def are_drawn(self) -> bool:
        """Return whether this process draws bars."""
        if not self._rank_info.is_main_process:
            return False
        from rich.console import Console  # takes time, and is not needed otherwise

        console = Console(stderr=True)
        return console.is_terminal and not console.is_dumb_terminal

    @contextlib.contextmanager
    def task(self, description: str, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
        """Draw a bar while the ``with`` block runs. Yield the display and the bar's id."""
        if self._display is None:
            self._display = _new_display()
            self._display.start()
        display = self._display
        task = display.add_task(description, total=total)
        self._num_active += 1
        try:
            yield display, task
        finally:
            self._num_active -= 1
            if self._num_active:
                display.remove_task(task)
            else:
                self._display = None
                display.stop()


def _new_display() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        redirect_stdout=sys.stdout.isatty(),  # if stdout goes to a file, rich must not divert it to the terminal
    )
