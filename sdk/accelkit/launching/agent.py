"""torch's elastic agent, but with accelkit's own code for watching processes, ending them and reporting failures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerGroup, WorkerSpec, WorkerState

from accelkit.launching import failures
from accelkit.launching.failures import Ending
from accelkit.launching.job import Job, torchrun_variables
from accelkit.launching.local_workers import LocalRanks
from accelkit.launching.log_tee import Screen
from accelkit.launching.rendezvous import OrderedRendezvous, linger

Say = Callable[[str], None]

FINISHED = "accelkit/finished"
"""The key under which the store of a round counts the machines whose processes have finished."""
AFTER_A_FAILURE = 10.0
"""The longest time between SIGTERM and SIGKILL after a failure, in seconds."""

_FAILED = "accelkit/failed"
_LISTEN_SECONDS = 2.0
_AFTER_INTERRUPT = 5.0
_NEVER = 10 * 365 * 86400.0


class Agent(SimpleElasticAgent):
    """The agent that runs the processes of this machine, in torch's cycle of rendezvous, start, monitoring and restart.

    Args:
        spec: The worker specification for torch.
        rendezvous: The rendezvous handler, which is also in ``spec``.
        job: The job that the user requested.
        folder: The folder for logs. The logs of rank R after restart N go to ``restart-N/rank-R/``; N is 0 for the first start.
        say: A function that prints a message to the user.
        is_hurried: A function that returns whether the user has asked a second time to end the job.
    """

    def __init__(
        self, spec: WorkerSpec, rendezvous: OrderedRendezvous, *, job: Job, folder: Path, say: Say, is_hurried: Callable[[], bool]
    ) -> None:
        super().__init__(spec, exit_barrier_timeout=_NEVER)  # _exit_barrier below does not use the timeout
        self._rendezvous_handler = rendezvous
        self._job, self._folder, self._say, self._is_hurried = job, folder, say, is_hurried
        self._screens = Screen(sys.stdout.buffer), Screen(sys.stderr.buffer)
        self._ranks: LocalRanks | None = None
        self._round = 0
        self._has_finished = False
        self.cause: Ending | None = None
        """The first failure on this machine in the last round."""
        self.remote_failure = ""
        """The message from the machine that ended the job, or "" if no other machine ended it."""
        self.is_leaving = False
        """Whether this machine is leaving the job, which goes on without it. Always False if the number of machines is fixed."""

    @property
    def has_started(self) -> bool:
        """Whether this agent has started processes in any round."""
        return self._ranks is not None

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._rendezvous_handler.remaining_restarts = self._remaining_restarts
        super()._rendezvous(worker_group)
        self._remaining_restarts = self._rendezvous_handler.remaining_restarts

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._has_finished, self.cause = False, None
        environs = {worker.global_rank: os.environ | self._variables(worker_group, worker) for worker in worker_group.workers}
        folder = self._folder / f"restart-{self._round}"
        self._round += 1
        self._ranks = LocalRanks(self._job.program, folder, environs, self._screens)
        return dict(enumerate(self._ranks.pids))

    def _variables(self, group: WorkerGroup, worker: Any) -> dict[str, str]:
        most = group.spec.max_restarts
        torchrun = torchrun_variables(
            rank=worker.global_rank,
            world_size=worker.world_size,
            local_rank=worker.local_rank,
            local_world_size=group.spec.local_world_size,
            group_rank=group.group_rank or 0,
            group_world_size=group.group_world_size or 1,
            main_address=str(group.master_addr),
            main_port=int(group.master_port or 0),
            run_id=group.spec.rdzv_handler.get_run_id(),
            restart_count=most - self._remaining_restarts,
            max_restarts=most,
            uses_agent_store=group.spec.rdzv_handler.use_agent_store,
        )
        waiting = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")}
        return {**self._job.environ, **torchrun, **waiting}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._ranks is not None
        if self._ranks.have_failed():
            self._ranks.wait_for_lost_peer(self._is_hurried)
            self._ranks.end(signal.SIGTERM, min(self._job.grace_period, AFTER_A_FAILURE), self._is_hurried)
            self.cause = failures.first(self._ranks.endings)
            if self._remaining_restarts > 0:
                most = worker_group.spec.max_restarts
                self._report(f"all processes are restarted: restart {most - self._remaining_restarts + 1} of {most}")
            elif not self._cause_is_elsewhere(worker_group.group_world_size):
                self._report("")
                self._announce(f"rank {self.cause.rank if self.cause else '?'} failed first: {self.cause}")
            return RunResult(WorkerState.FAILED)
        if worker_group.group_world_size == 1:
            has_finished = self._ranks.have_finished()
        else:
            if (remote_failure := self._read_remote_failure()) is not None:
                self.remote_failure = remote_failure
                self._remaining_restarts = 0
                self._ranks.end(signal.SIGTERM, min(self._job.grace_period, AFTER_A_FAILURE), self._is_hurried)
                return RunResult(WorkerState.FAILED)
            has_finished = self._everybody_has_finished(worker_group.group_world_size)
        if not has_finished:
            return RunResult(WorkerState.HEALTHY)
        return RunResult(WorkerState.SUCCEEDED, return_values={worker.global_rank: None for worker in worker_group.workers})

    def _report(self, then: str) -> None:
        assert self._ranks is not None
        if (cause := self.cause) is not None:
            report = [f"rank {cause.rank} failed first: {cause}", failures.describe(self._ranks.endings, cause)]
            report += [f"  logs: {cause.folder.parent}/rank-N/stdout.log, stderr.log"]
            self._say("\n".join(report + [f"  {then}"] * bool(then)))

    def _stop_workers(self, worker_group: WorkerGroup, *_: Any, **__: Any) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *_: Any, **__: Any) -> None:
        if self._ranks is not None:
            grace = min(self._job.grace_period, _AFTER_INTERRUPT) if death_sig == signal.SIGINT else self._job.grace_period
            self._ranks.end(death_sig, grace, self._is_hurried)

    # -- communication with the other machines ------------------------------------------------------------------------

    def _everybody_has_finished(self, size: int | None) -> bool:
        """Return whether the processes of all ``size`` machines have finished.

        When the processes of this machine have finished, this method also reports that to the other machines.

        A machine whose processes have finished continues to monitor the job: if a process of another machine fails, the processes of all
        machines may have to be restarted.
        """
        store = self._rendezvous_handler.store
        assert self._ranks is not None
        if not self._has_finished and self._ranks.have_finished():
            self._has_finished = True
            store.add(FINISHED, 1)
        return self._has_finished and int(store.add(FINISHED, 0)) >= (size or 1)

    def announce_signal(self, name: str) -> None:
        """Tell the other machines that this machine received the signal ``name`` and therefore ended the job.

        Waits up to a few seconds to give the other machines time to read the message. Does nothing if the job runs on one machine, or if
        another machine has already ended it.
        """
        self._announce(f"it received {name}")

    def _cause_is_elsewhere(self, size: int | None) -> bool:
        """Return whether another machine caused the failure on this machine.

        Another machine can be the cause only if the job runs on several machines, and if the first error on this machine says that another
        process ended or did not respond. In that case, wait up to two seconds for another machine to report that it has ended the job, and
        return whether such a report has arrived. Otherwise, return False immediately.
        """
        if size in (None, 1) or self.cause is None or not self.cause.has_lost_a_peer:
            return False
        deadline = time.monotonic() + _LISTEN_SECONDS
        while time.monotonic() < deadline:
            if (remote_failure := self._read_remote_failure()) is not None:
                self.remote_failure, self._remaining_restarts = remote_failure, 0
                return True
            time.sleep(0.05)
        return False

    def _announce(self, reason: str) -> None:
        if self.get_worker_group().group_world_size in (None, 1) or self.remote_failure:
            return
        self._record_failure(reason)
        self.leave()

    def _record_failure(self, reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # raised by torch if the host of the store has exited, which the other machines notice too
            self._rendezvous_handler.store.set(_FAILED, json.dumps(f"{socket.gethostname()} ended the job: {reason}"))

    def _read_remote_failure(self) -> str | None:
        store = self._rendezvous_handler.store
        return str(json.loads(store.get(_FAILED))) if store.check([_FAILED]) else None

    def _exit_barrier(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Announce that this machine leaves, and wait up to a few seconds until all machines have announced this. If the machine that hosts
        the store exited earlier, the other machines could not read how the job ended."""
        size = self.get_worker_group().group_world_size
        if size not in (None, 1):
            linger(self._rendezvous_handler.store, size)
