"""Running tests in worker processes: lanes in parallel, a crash or a hang costs one test, failures are run again."""

from __future__ import annotations

import collections
import dataclasses
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


class Runner:
    """Runs tests and yields what comes of them.

    Attributes:
        hello: What the first worker with hardware said of the device.
        peak_bytes: Resident memory of the largest worker.
        num_workers: How many worker processes were started.
    """

    def __init__(self, order: Order, folder: Path, *, lanes: int, reruns: int) -> None:
        self._order, self._folder, self._num_lanes, self._reruns = order, folder, lanes, reruns
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._crews: set[Crew] = set()
        self.hello: dict[str, Any] = {}
        self.peak_bytes, self.num_workers = 0, 0

    def run(self, tests: Sequence[str]) -> Iterator[Result | Started]:
        """One Result for each test, in the order in which they end. Closing the iterator kills the workers.

        Raises:
            BrokenPluginError: If no worker can be started for the plugin at all.
        """
        self._todo = self._batches(tests)
        threads = [threading.Thread(target=self._lane, args=(slot,), daemon=True) for slot in range(self._num_lanes)]
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
            self._is_stopped = True
            for crew in list(self._crews):
                crew.kill()

    def _batches(self, tests: Sequence[str]) -> collections.deque[list[str]]:
        """Tests of one kind of crew in batches of neighbours; what needs several processes first: it takes longest."""
        kinds: dict[tuple[int, bool], list[str]] = collections.defaultdict(list)
        for test in tests:
            kinds[-checks.num_processes(test), checks.find(test)[0].needs_hardware].append(test)
        batches: collections.deque[list[str]] = collections.deque()
        for (size, _), group in sorted(kinds.items()):
            step = len(group) if size < -1 else max(1, min(_BATCH, len(group) // (2 * self._num_lanes)))
            batches += [group[start : start + step] for start in range(0, len(group), step)]
        return batches

    def _lane(self, slot: int) -> None:
        crew: Crew | None = None
        try:
            while not self._is_stopped:
                with self._lock:
                    batch = self._todo.popleft() if self._todo else None
                if batch is None:
                    break
                for test in batch:
                    if self._is_stopped:
                        break
                    self._events.put(Started(test))
                    crew, result = self._attempts(crew, test, slot)
                    self._events.put(result)
        except BaseException as error:
            self._events.put(_Failed(error))
        finally:
            self._dismiss(crew)
            self._events.put(None)

    def _attempts(self, crew: Crew | None, test: str, slot: int) -> tuple[Crew | None, Result]:
        try:
            crew = self._crew_for(crew, test, slot)
        except BrokenPluginError as error:
            if not self.hello and checks.num_processes(test) == 1:
                raise  # nothing can be run on this device at all
            return None, Result(test, "crash", reason=f"{error.what}: {error.why}")
        first = result = crew.run(test, self._seconds(test))
        attempts = 1
        while result.kind in RERUN and attempts <= self._reruns and not self._is_stopped:
            crew = self._crew_for(crew, test, slot, is_fresh=attempts == self._reruns)
            result = crew.run(test, self._seconds(test))
            attempts += 1
        if attempts > 1 and result.kind not in RERUN:
            reason = f"{first.kind} at first, then {result.kind}: {first.reason}"
            return crew, dataclasses.replace(first, kind="flaky", attempts=attempts, reason=reason)
        return crew, dataclasses.replace(first, attempts=attempts)

    def _seconds(self, test: str) -> float:
        return self._order.seconds or checks.find(test)[0].seconds

    def _crew_for(self, crew: Crew | None, test: str, slot: int, *, is_fresh: bool = False) -> Crew:
        """A crew that can run this test: the one at hand, or a new one. The last attempt at a test is a fresh process's."""
        size, needs_hardware = checks.num_processes(test), checks.find(test)[0].needs_hardware
        if crew is not None and crew.fits(size, needs_hardware) and not is_fresh:
            return crew
        self._dismiss(crew)
        with self._lock:
            self.num_workers += size
            number = self.num_workers
        crew = Crew(self._order, size=size, number=number, slot=slot, needs_hardware=needs_hardware, folder=self._folder)
        self._crews.add(crew)
        self.hello = self.hello or crew.hello
        return crew

    def _dismiss(self, crew: Crew | None) -> None:
        if crew is not None:
            self.peak_bytes = max(self.peak_bytes, crew.peak_bytes)
            self._crews.discard(crew)
            crew.end()
