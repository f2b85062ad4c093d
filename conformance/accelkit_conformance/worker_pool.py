"""Groups of worker processes. The processes of a group run a test together; most tests need a group of one process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from accelkit import BrokenPluginError, PluginRecord, child_processes
from accelkit.discovery import probing, subprocess_env
from accelkit_conformance.results import BAD, CRASHED, Kind, Result
from accelkit_conformance.subprocess_checks import ROOT, about, as_request

START_SECONDS = 300.0
_RAISE_LIMIT = "--timeout raises the limit"
_RAISE_FIRST_LIMIT = "; --first-call-timeout raises it for first runs, in which a device may compile kernels"
_LAST_LINES = 40


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """The settings with which worker processes are started.

    Attributes:
        record: The plugin under test.
        expectations: The expected failures, as dictionaries.
        most_samples: The maximum number of inputs with which each operator is tested.
        most_bytes: The resident memory in bytes above which a worker is replaced.
        most_tests: The number of tests after which a worker is replaced.
        seconds: The time limit of every test in seconds. None means that each test has its own time limit.
        first_call_timeout: The time in seconds that is added to the time limit of the first run of each test, because a device may compile
            kernels during that run; None for the time that the accelerator declares.
        wants_coverage: Whether workers record the ATen overloads that go through the dispatcher.
        accelerators: The accelerators on which a precision or a strategy is tested; empty for plugins of other kinds.
    """

    record: PluginRecord
    expectations: tuple[dict[str, Any], ...] = ()
    most_samples: int = 8
    most_bytes: int = 1_800_000_000
    most_tests: int = 2000
    seconds: float | None = None
    first_call_timeout: float | None = None
    wants_coverage: bool = False
    accelerators: tuple[PluginRecord, ...] = ()

    def as_request(
        self, *, needs_hardware: bool = True, worker: int = 1, rank: int = 0, world_size: int = 1, rendezvous: str = ""
    ) -> dict[str, Any]:
        """Return the first message to a worker process: the settings that the worker reads from standard input when it starts.

        Args:
            needs_hardware: Whether the worker loads the accelerators on which the tests run.
            worker: The index of the first worker of the group. All processes of the group get the same index.
            rank: The rank of the process in its group.
            world_size: The number of processes of the group.
            rendezvous: A prefix for the paths of the files through which the processes of the group find each other (see ``RankGroup``).
        """
        return {
            **about(self.record),
            "expectations": self.expectations,
            "most_samples": self.most_samples,
            "wants_coverage": self.wants_coverage,
            "accelerators": [as_request(one) for one in self.accelerators],
            "needs_hardware": needs_hardware,
            "first_call_timeout": self.first_call_timeout,
            "worker": worker,
            "rank": rank,
            "world_size": world_size,
            "rendezvous": rendezvous,
        }


class WorkerGroup:
    """Worker processes that run tests together. ``end`` kills them and everything that they started.

    Args:
        order: The settings with which the workers are started.
        size: The number of worker processes.
        number: The index of the first worker. The workers of all groups are numbered consecutively.
        needs_hardware: Whether the workers load the accelerators on which the tests run.
        folder: The folder for the logs of the workers.

    Raises:
        BrokenPluginError: If a worker does not start.
    """

    def __init__(self, order: Order, *, size: int, number: int, needs_hardware: bool, folder: Path) -> None:
        self.order, self.size, self.number = order, size, number
        self.needs_hardware = needs_hardware
        self.num_tests, self.peak_bytes = 0, 0
        self._log = folder / f"worker-{number}.log"
        self._rendezvous = str(folder / f"rendezvous-{uuid.uuid4().hex}")  # created by torch.distributed
        self._selector = selectors.DefaultSelector()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._partial: list[bytes] = [b""] * size
        self._if_it_dies: tuple[str, Result] | None = None  # the expected error, and the result of the test if the error occurs
        self._doing, self._hung = "", ""  # what a check calls, and why a call did not return
        for rank in range(size):
            self._start(rank)
        limit = max(START_SECONDS, probing.time_limit("load"))
        deadline = time.monotonic() + limit
        hellos = self._answers(deadline)
        if hellos is None:
            is_late = time.monotonic() >= deadline
            reason, detail = f"no answer within {limit:g} s" if is_late else self._why(), self.tail()
            self.end()
            slow = f"set ACCELKIT_LOAD_TIMEOUT to more than {limit:g} (seconds) if loading takes longer; " if is_late else ""
            raise BrokenPluginError(
                f"no worker process could be started for {order.record.name}",
                plugin=order.record.plugin,
                why=f"{reason}: {' '.join(detail.split())[-600:]}",
                hint=f"{slow}for details: accelkit doctor {order.record.name}",
            )
        self.hello: dict[str, Any] = hellos[0]["hello"]
        self._first_call_timeout: float = max(hello["first_call_timeout"] for hello in hellos)

    def run(self, test: str, seconds: float, *, fault: str | None = None) -> Result:
        """Run a test and return its result. Afterwards, ``is_spent`` says whether these workers must be replaced.

        The device may compile kernels, so ``first_call_timeout`` is added to the time limit. The value of ``first_call_timeout`` comes from
        the options of the run. If it is not set there, the accelerator's own value is used. If the test ends within the extended limit but
        takes longer than ``seconds``, and these workers need not be replaced, the test is run a second time. The limit is then ``seconds``,
        and the result of the second run is returned.

        Args:
            test: The id of the test.
            seconds: The time limit in seconds.
            fault: Only for a ``Switchable`` mutant: the id of the generated mutant whose fault is used, or "" for no fault. For any other
                plugin, pass None, which leaves the plugin as it is.
        """
        result = self._run_once(test, seconds + self._first_call_timeout, fault)
        if result.seconds <= seconds or self.is_spent:
            return result
        again = self._run_once(test, seconds, fault)
        return dataclasses.replace(again, notes=(*again.notes, f"its first run took {result.seconds:.1f} s"))

    def _run_once(self, test: str, seconds: float, fault: str | None) -> Result:
        start = time.perf_counter()
        mark = self._log.stat().st_size if self._log.exists() else 0
        message = {"test": test} if fault is None else {"test": test, "fault": fault}
        line = json.dumps(message).encode() + b"\n"
        for process in self._processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
        self._if_it_dies, self._doing, self._hung = None, "", ""
        answers = self._answers(time.monotonic() + seconds)
        self.num_tests += 1
        if answers is None:
            took = time.perf_counter() - start
            kind: Kind = "timeout" if took >= seconds or self._hung else "crash"
            has_device = self.order.record.kind == "accelerator" or self.order.accelerators
            options = f"{_RAISE_LIMIT}{_RAISE_FIRST_LIMIT if has_device else ''}"
            late = self._hung or f"no answer within {seconds:g} s ({options})"
            reason = late if kind == "timeout" else self._why()
            detail = self.tail(mark)
            self.end()
            error, expected = self._if_it_dies or ("", None)
            if expected is not None and (kind == error or reason.endswith(f" crashed with {error}")):
                return dataclasses.replace(expected, seconds=round(took, 3))
            if self._doing and not self._hung:
                reason = f"{reason}, in {self._doing}"
            return Result(test, kind, round(took, 3), reason, detail=detail, worker=self.number)
        self.peak_bytes = max(self.peak_bytes, *(answer["rss"] for answer in answers))
        results = [Result.from_dict(answer) for answer in answers]
        worst = next((result for kinds in (CRASHED, BAD) for result in results if result.kind in kinds), results[0])
        if self.size > 1 and worst.kind in BAD:
            rank = results.index(worst)
            worst = dataclasses.replace(worst, reason=f"on rank {rank}: {worst.reason}")
            if not all(result.kind in BAD for result in results):
                self.end()  # the processes may no longer agree on which collective comes next
        if worst.kind in CRASHED:
            self.end()  # after a device error, every further call in the process may fail
        elif why := next((answer["spoilt"] for answer in answers if answer["spoilt"]), ""):
            self.end()  # so that other tests do not fail because of this error
            note = f"after this test, the device no longer computed in this process: {why}"
            worst = dataclasses.replace(worst, notes=(*worst.notes, note))
        return worst

    @property
    def is_spent(self) -> bool:
        """Whether the group must be replaced.

        A group is replaced after it has ended, after it has run ``most_tests`` tests, or after the memory of a worker has exceeded
        ``most_bytes``.
        """
        return not self._processes or self.num_tests >= self.order.most_tests or self.peak_bytes > self.order.most_bytes

    def fits(self, size: int, needs_hardware: bool) -> bool:
        return size == self.size and needs_hardware == self.needs_hardware and not self.is_spent

    def kill(self) -> None:
        """Kill every process of the group and all processes that they started.

        Any thread may call this; the thread that runs tests must still call ``end``.
        """
        for process in self._processes:
            child_processes.kill(process)

    def end(self) -> None:
        """Kill the workers and all processes that they started, and release the resources of this worker group."""
        self.kill()
        for process in self._processes:
            child_processes.end(process)
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):
                    stream.close()
        self._processes = []
        self._selector.close()

    def tail(self, since: int = 0) -> str:
        """Return the last lines of the group's log. Lines before byte ``since`` are not returned."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(since)
            return "\n".join(file.read()[-8000:].decode("utf-8", "replace").splitlines()[-_LAST_LINES:])

    def _start(self, rank: int) -> None:
        request = self.order.as_request(
            needs_hardware=self.needs_hardware, worker=self.number, rank=rank, world_size=self.size, rendezvous=self._rendezvous
        )
        with self._log.open("ab") as log:
            process = child_processes.start(
                subprocess_env.command("accelkit_conformance.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=subprocess_env.environment(ROOT, OMP_NUM_THREADS="1"),
            )
        assert process.stdin is not None
        assert process.stdout is not None
        self._processes.append(process)
        self._selector.register(process.stdout, selectors.EVENT_READ, rank)
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()

    def _answers(self, deadline: float) -> list[dict[str, Any]] | None:
        """Wait for an answer from every process and return the answers in rank order.

        Return None if a process died or the deadline passed. Messages of three other kinds are stored in attributes: ``_if_it_dies`` (a
        crash is expected), ``_doing`` (a call to the plugin begins or ends) and ``_hung`` (a call does not return).
        """
        found: dict[int, dict[str, Any]] = {}
        while len(found) < self.size:
            ready = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                rank = key.data
                chunk = os.read(key.fd, 1 << 20)
                if not chunk:
                    return None
                *lines, self._partial[rank] = (self._partial[rank] + chunk).split(b"\n")
                for answer in map(json.loads, lines):
                    if "so_far" in answer:
                        self._if_it_dies = answer["error"], Result.from_dict(answer["so_far"])
                    elif "hung" in answer or "doing" in answer:
                        self._hung, self._doing = str(answer.get("hung", "")), str(answer.get("doing", ""))
                    else:
                        found[rank] = answer
        return [found[rank] for rank in range(self.size)]

    def _why(self) -> str:
        """Return a message that says how a process of the group ended.

        Waits up to one second for a process to end. If none ends, the message says that no process responds.
        """
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            for rank, process in enumerate(self._processes):
                if (code := process.poll()) is not None:
                    who = f"rank {rank}" if self.size > 1 else "the process"
                    if code < 0:
                        return f"{who} crashed with {subprocess_env.signal_name(code)}"
                    return f"{who} exited with status {code}"
            time.sleep(0.01)
        return "no process responds"
