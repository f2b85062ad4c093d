"""Timing of calls on a device that computes asynchronously."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from accelkit import gc_pause


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The settings that determine how long a measurement takes.

    Attributes:
        rounds: The number of samples.
        round_seconds: The minimum duration of a sample. If a call is shorter, each sample is the mean of several calls.
        most_seconds: The time after which no more samples are taken. However, at least three samples are always taken.
        longest_call: A measurement is left out if one call is expected to take more than this number of seconds.
    """

    rounds: int
    round_seconds: float
    most_seconds: float
    longest_call: float

    def seconds(self, call: Callable[[], object], synchronize: Callable[[], None]) -> list[float]:
        """Measure a call several times. Return the result of each measurement (sample), in seconds per call.

        Some calls are made before the first sample, to determine the number of calls per sample. These calls also warm up the device.

        This method does not use ``torch.utils.benchmark.Timer``, for three reasons. ``Timer.timeit`` makes at least two calls before each
        sample, so measuring large operators would take three times as long. By default, Timer sets torch to one thread. Timer waits only
        for the devices that ``torch.accelerator`` knows.

        Args:
            call: The call to measure. It may return before the device has finished.
            synchronize: A function that waits until the device has finished.
        """
        call()
        repeat, once = 1, self._sample(call, synchronize, 1)
        while once * repeat < self.round_seconds:
            repeat = min(repeat * 10, int(self.round_seconds / max(once, 1e-9)) + 1)
            once = self._sample(call, synchronize, repeat)
        samples: list[float] = []
        end = time.perf_counter() + self.most_seconds
        with gc_pause.collector_paused():
            while len(samples) < self.rounds and (len(samples) < 3 or time.perf_counter() < end):
                samples.append(self._sample(call, synchronize, repeat))
        return samples

    def _sample(self, call: Callable[[], object], synchronize: Callable[[], None], repeat: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        synchronize()
        return (time.perf_counter() - start) / repeat


QUICK = Plan(rounds=9, round_seconds=0.002, most_seconds=1.0, longest_call=0.25)
FULL = Plan(rounds=25, round_seconds=0.01, most_seconds=10.0, longest_call=1.0)
