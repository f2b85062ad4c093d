"""Events that measure wrong times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


def event_class() -> Any:
    """Return a subclass of ``torch.Event`` whose ``elapsed_time`` works: that of ``torch.Event`` itself rejects objects of a subclass."""
    import torch

    original: Any = torch.Event

    class Event(original):
        def __new__(cls, *args: Any, **options: Any) -> Any:
            event: Any = super().__new__(cls, *args, **options)
            event.twin = original(*args, **options)
            return event

        def record(self, *args: Any) -> None:
            super().record(*args)
            self.twin.record(*args)

        def elapsed_time(self, end: Any) -> float:
            self.twin.synchronize()
            end.twin.synchronize()
            return float(self.twin.elapsed_time(end.twin))

    return Event


class _AnotherTime(Broken):
    """The base class of mutants whose Event.elapsed_time is a multiple of the right time.

    Attributes:
        factor: The factor by which the time is multiplied.
    """

    factor: float

    def install(self) -> None:
        import torch

        factor = self.factor

        class Event(event_class()):  # type: ignore[misc]
            def elapsed_time(self, end: Any) -> float:
                return factor * float(super().elapsed_time(end))

        torch.Event = Event  # type: ignore[misc]


@mutant("streams", "events")
class TimeRunsBackwards(_AnotherTime):
    """Event.elapsed_time is negative."""

    factor = -1.0


@mutant("streams", "events")
class MeasuresSeconds(_AnotherTime):
    """Event.elapsed_time is in seconds instead of milliseconds."""

    factor = 0.001


@mutant("streams", "times of events")
class StopsTheClockWhenIdle(Broken):
    """Event.elapsed_time is 0 if no operator ran on the device between the two events."""

    def install(self) -> None:
        super().install()
        import torch

        self.count = 0
        mutant = self

        class Event(event_class()):  # type: ignore[misc]
            def record(self, *args: Any) -> None:
                super().record(*args)
                self.recorded_after = mutant.count

            def elapsed_time(self, end: Any) -> float:
                return float(super().elapsed_time(end)) if end.recorded_after > self.recorded_after else 0.0

        torch.Event = Event  # type: ignore[misc]

    def fault(self, name: str, call: Callable[[], Any], args: Any, kwargs: Any, func: Any) -> Any:
        self.count += 1
        return call()


@mutant("streams", "times without waiting")
class TimesOfSynchronizedEvents(Broken):
    """``elapsed_time`` raises an error if ``synchronize`` of the end event has not been called."""

    def install(self) -> None:
        import torch

        class Event(event_class()):  # type: ignore[misc]
            is_over = False

            def synchronize(self) -> None:
                super().synchronize()
                self.is_over = True

            def elapsed_time(self, end: Any) -> float:
                if not end.is_over:
                    raise RuntimeError("the end event is not done")
                return float(super().elapsed_time(end))

        torch.Event = Event  # type: ignore[misc]
