"""Running tests in worker processes: lanes in parallel, a crash or a hang costs one test, failures are run again."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from accelkit import BrokenPluginError
from accelkit_conformance import checks
from accelkit_conformance.crew import Crew, Order
from accelkit_conformance.outcomes import RERUN, Result

_BATCH = 16


@dataclasses.dataclass(slots=True)
class Started:
    """A lane says which test it runs now."""

    test: str


@dataclasses.dataclass(slots=True)
class _Failed:
    error: BaseException


_Event = Result | Started | _Failed | None


class Lane:
    """Runs one test after the other in a worker process, or in as many as the test needs, and replaces those that end.

    Args:
        order: What workers are started for.
        folder: Where what they print goes.
        slot: Spreads lanes over devices.
        reruns: How often a failed test is run again.
        numbers: Of workers; lanes share them.

    Attributes:
        hello: What the first worker with hardware said of the device.
        peak_bytes: Resident memory of the largest worker.
    """

    def __init__(self, order: Order, folder: Path, *, slot: int = 0, reruns: int = 0, numbers: Iterator[int] | None = None) -> None:
        self._order, self._folder, self._slot, self._reruns = order, folder, slot, reruns
        self._numbers = numbers or itertools.count(1)
        self._crew: Crew | None = None
        self.hello: dict[str, Any] = {}
        self.peak_bytes, self.num_workers = 0, 0
        self.is_stopped = False

    def run(self, test: str) -> Result:
        """What comes of a test.

        Raises:
            BrokenPluginError: If no worker can be started for the plugin at all.
        """
        try:
            crew = self._crew_for(test)
        except BrokenPluginError as error:
            if not self.hello and checks.num_processes(test) == 1:
                raise  # nothing can be run on this device
            return Result(test, "crash", reason=f"{error.what}: {error.why}")
        seconds = self._order.seconds or checks.find(test)[0].seconds
        first = result = crew.run(test, seconds)
        attempts = 1
        while result.kind in RERUN and attempts <= self._reruns and not self.is_stopped:
            result = self._crew_for(test, is_fresh=attempts == self._reruns).run(test, seconds)
            attempts += 1
        if attempts > 1 and result.kind not in RERUN:
            reason = f"{first.kind} at first, then {result.kind}: {first.reason}"
            return dataclasses.replace(first, kind="flaky", attempts=attempts, reason=reason)
        return dataclasses.replace(first, attempts=attempts)

    def stop(self) -> None:
        """From another thread: kill the workers, so that ``run`` returns."""
        self.is_stopped = True
        if self._crew is not None:
            self._crew.kill()

    def close(self) -> None:
        """End the workers."""
        if self._crew is not None:
            self.peak_bytes = max(self.peak_bytes, self._crew.peak_bytes)
            self._crew.end()
            self._crew = None

    def _crew_for(self, test: str, *, is_fresh: bool = False) -> Crew:
        """A crew that can run this test: the one at hand, or a new one. The last attempt at a test is a fresh process's."""
        size, needs_hardware = checks.num_processes(test), checks.find(test)[0].needs_hardware
        if self._crew is not None and self._crew.fits(size, needs_hardware) and not is_fresh:
            return self._crew
        self.close()
        number, *_ = (next(self._numbers) for _ in range(size))
        self.num_workers += size
        self._crew = Crew(self._order, size=size, number=number, slot=self._slot, needs_hardware=needs_hardware, folder=self._folder)
        self.hello = self.hello or self._crew.hello
        return self._crew


class Runner:
    """Runs tests in several lanes.

    Attributes:
        lanes: They.
    """

    def __init__(self, order: Order, folder: Path, *, lanes: int, reruns: int) -> None:
        numbers = itertools.count(1)
        self.lanes = [Lane(order, folder, slot=slot, reruns=reruns, numbers=numbers) for slot in range(lanes)]
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._lock = threading.Lock()

    @property
    def hello(self) -> dict[str, Any]:
        """What the first worker with hardware said of the device; empty before."""
        return next((lane.hello for lane in self.lanes if lane.hello), {})

    @property
    def peak_bytes(self) -> int:
        """Resident memory of the largest worker."""
        return max(lane.peak_bytes for lane in self.lanes)

    @property
    def num_workers(self) -> int:
        """How many worker processes were started."""
        return sum(lane.num_workers for lane in self.lanes)

    def run(self, tests: Sequence[str]) -> Iterator[Result | Started]:
        """One Result for each test, in the order in which they end. Closing the iterator kills the workers.

        Raises:
            BrokenPluginError: If no worker can be started for the plugin at all.
        """
        self._todo = self._batches(tests)
        threads = [threading.Thread(target=self._drive, args=(lane,), daemon=True) for lane in self.lanes]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                event = self._events.get()
                if event is None:
                    running -= 1
                elif isinstance(event, _Failed):
                    raise event.error
                else:
                    yield event
        finally:
            for lane in self.lanes:
                lane.stop()

    def _batches(self, tests: Sequence[str]) -> collections.deque[list[str]]:
        """Tests of one kind of crew in batches of neighbours; what needs several processes first: it takes longest."""
        kinds: dict[tuple[int, bool], list[str]] = collections.defaultdict(list)
        for test in tests:
            kinds[-checks.num_processes(test), checks.find(test)[0].needs_hardware].append(test)
        batches: collections.deque[list[str]] = collections.deque()
        for (size, _), group in sorted(kinds.items()):
            step = len(group) if size < -1 else max(1, min(_BATCH, len(group) // (2 * len(self.lanes))))
            batches += [group[start : start + step] for start in range(0, len(group), step)]
        return batches

    def _drive(self, lane: Lane) -> None:
        try:
            while not lane.is_stopped:
                with self._lock:
                    batch = self._todo.popleft() if self._todo else None
                if batch is None:
                    break
                for test in batch:
                    self._events.put(Started(test))
                    result = lane.run(test)
                    if lane.is_stopped:
                        break  # what was killed on purpose is no result
                    self._events.put(result)
        except BaseException as error:
            self._events.put(_Failed(error))
        finally:
            lane.close()
            self._events.put(None)
