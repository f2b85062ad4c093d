"""Run tests in worker processes. Several ``Executor`` objects run in parallel, each with one test at a time. A crash or hang fails only
one test. Failed tests are run again."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from accelkit import BrokenPluginError
from accelkit_conformance import checks
from accelkit_conformance.results import CRASHED, RERUN, Result
from accelkit_conformance.worker_pool import Order, WorkerGroup

_BATCH = 16
_AGAIN = "; when it was run again: "


@dataclasses.dataclass(slots=True)
class Started:
    """The event that an executor sends when it starts a test."""

    test: str


@dataclasses.dataclass(slots=True)
class _Failed:
    error: BaseException


_Event = Result | Started | _Failed | None


class Executor:
    """An object that runs tests one at a time in worker processes.

    It starts as many worker processes as each test needs, and replaces workers that have ended.

    Args:
        order: The settings with which workers are started.
        folder: The folder for the logs of the workers.
        reruns: The maximum number of times that a failed test is run again.
        numbers: An iterator over the indices of new workers. All executors of a ``Runner`` use the same iterator.

    Attributes:
        hello: The description of the device, from the first worker that loaded the plugin.
        peak_bytes: The largest resident memory, in bytes, that a worker had at the end of a test. It is 0 at first, and is updated when
            workers are replaced and in ``close``.
        num_workers: The number of worker processes that were started.
        is_stopped: Whether ``stop`` has been called.
    """

    def __init__(self, order: Order, folder: Path, *, reruns: int = 0, numbers: Iterator[int] | None = None) -> None:
        self._order, self._folder, self._reruns = order, folder, reruns
        self._numbers = numbers or itertools.count(1)
        self._group: WorkerGroup | None = None
        self.hello: dict[str, Any] = {}
        self.peak_bytes, self.num_workers = 0, 0
        self.is_stopped = False

    def run(self, test: str) -> Result:
        """Run a test and return its result. If the test fails, run it again up to ``reruns`` times, and return the combined result.

        If the workers for an attempt cannot be started, the attempt counts as a crash, except in the case described below.

        Raises:
            BrokenPluginError: If the test needs only one process, its worker cannot be started, and no worker of this executor has
                described its device so far (``hello`` is empty).
        """
        results = [self._attempt(test, is_fresh=False)]
        while results[-1].kind in RERUN and len(results) <= self._reruns and self._group is not None and not self.is_stopped:
            results.append(self._attempt(test, is_fresh=len(results) == self._reruns))
        return combined(results)

    def stop(self) -> None:
        """Kill the workers, so that ``run``, which another thread is executing, returns without running the test again."""
        self.is_stopped = True
        if (group := self._group) is not None:
            group.kill()

    def close(self) -> None:
        """End the workers."""
        if self._group is not None:
            self.peak_bytes = max(self.peak_bytes, self._group.peak_bytes)
            self._group.end()
            self._group = None

    def _attempt(self, test: str, *, is_fresh: bool) -> Result:
        try:
            group = self._group_for(test, is_fresh=is_fresh)
        except BrokenPluginError as error:
            if not self.hello and checks.num_processes(test) == 1:
                raise  # nothing can be run on this device
            return Result(test, "crash", reason=f"{error.what}: {error.why}")
        if self.is_stopped:  # ``stop`` was called while the workers were starting
            group.kill()
        return group.run(test, self._order.seconds or checks.find(test)[0].seconds)

    def _group_for(self, test: str, *, is_fresh: bool) -> WorkerGroup:
        """Return a group that can run this test: the current group if possible, otherwise a new group.

        If ``is_fresh`` is True, the group is always new. ``run`` sets ``is_fresh`` for the last rerun of a test.
        """
        size, needs_hardware = checks.num_processes(test), checks.find(test)[0].needs_hardware
        if self._group is not None and self._group.fits(size, needs_hardware) and not is_fresh:
            return self._group
        self.close()
        number, *_ = (next(self._numbers) for _ in range(size))
        self.num_workers += size
        self._group = WorkerGroup(self._order, size=size, number=number, needs_hardware=needs_hardware, folder=self._folder)
        self.hello = self.hello or self._group.hello
        return self._group


def combined(attempts: Sequence[Result]) -> Result:
    """Return the combined result of a test that was run one or more times. All attempts before the last must have failed.

    If there is only one attempt, or if the last attempt also failed, the result is that of the first attempt. Otherwise, the result is the
    first crash or hang among the attempts, or ``flaky`` if there was none.
    """
    first, last = attempts[0], attempts[-1]
    number = sum(one.attempts for one in attempts)
    if len(attempts) == 1 or last.kind in RERUN:
        return dataclasses.replace(first, attempts=number)
    what = "passed" if last.kind == "pass" else f"the result was {last.kind}"
    crash = next((one for one in attempts if one.kind in CRASHED), None)
    if crash is not None:
        before = crash.reason.partition(_AGAIN)[0]
        return dataclasses.replace(crash, attempts=number, reason=f"{before}{_AGAIN}{what}")
    return dataclasses.replace(first, kind="flaky", attempts=number, reason=f"{first.reason}{_AGAIN}{what}")


class Runner:
    """An object that runs several tests at a time, each in its own executor.

    Args:
        order: The settings with which workers are started.
        folder: The folder for the logs of the workers.
        parallel: The number of executors.
        reruns: The number of times that a failed test is run again.

    Attributes:
        executors: The executors, one for each of the tests that run at the same time.
    """

    def __init__(self, order: Order, folder: Path, *, parallel: int, reruns: int) -> None:
        numbers = itertools.count(1)
        self.executors = [Executor(order, folder, reruns=reruns, numbers=numbers) for _ in range(parallel)]
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._lock = threading.Lock()

    @property
    def hello(self) -> dict[str, Any]:
        """The description of the device, from one of the workers that loaded the plugin.

        It is empty until a worker has loaded the plugin. If the plugin is not an accelerator, it is always empty.
        """
        return next((executor.hello for executor in self.executors if executor.hello), {})

    @property
    def peak_bytes(self) -> int:
        """The largest resident memory, in bytes, that a worker had at the end of a test. It is 0 while the first workers run."""
        return max(executor.peak_bytes for executor in self.executors)

    @property
    def num_workers(self) -> int:
        """The number of worker processes that were started."""
        return sum(executor.num_workers for executor in self.executors)

    def run(self, tests: Sequence[str]) -> Generator[Result | Started, None, None]:
        """Run the tests. Yield a Started event when a test starts, and its Result when it ends.

        Tests that need several processes run first. Events of tests that run at the same time are interleaved. Closing the iterator kills
        the workers. A Runner can run only once.

        Raises:
            BrokenPluginError: If no worker can be started for the plugin at all.
        """
        self._todo = self._batches(tests)
        threads = [threading.Thread(target=self._drive, args=(executor,), daemon=True) for executor in self.executors]
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
            for executor in self.executors:
                executor.stop()

    def _batches(self, tests: Sequence[str]) -> collections.deque[list[str]]:
        """Split the tests into batches.

        All tests of a batch need the same number of processes, and either all or none of them need hardware.
        The batches with the most processes are first, because their tests take longest.
        """
        kinds: dict[tuple[int, bool], list[str]] = collections.defaultdict(list)
        for test in tests:
            kinds[-checks.num_processes(test), checks.find(test)[0].needs_hardware].append(test)
        batches: collections.deque[list[str]] = collections.deque()
        for (size, _), group in sorted(kinds.items()):
            step = len(group) if size < -1 else max(1, min(_BATCH, len(group) // (2 * len(self.executors))))
            batches += [group[start : start + step] for start in range(0, len(group), step)]
        return batches

    def _drive(self, executor: Executor) -> None:
        try:
            while not executor.is_stopped:
                with self._lock:
                    batch = self._todo.popleft() if self._todo else None
                if batch is None:
                    break
                for test in batch:
                    self._events.put(Started(test))
                    result = executor.run(test)
                    if executor.is_stopped:
                        break  # the worker was killed on purpose, so this is not a result of the test
                    self._events.put(result)
        except BaseException as error:
            self._events.put(_Failed(error))
        finally:
            executor.close()
            self._events.put(None)
