"""The agent of a job whose number of machines may change while it runs."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState

from accelkit.launching import failures
from accelkit.launching.agent import AFTER_A_FAILURE, FINISHED, Agent
from accelkit.launching.membership import LOST_SECONDS, Membership, ask_to_stop, reason_to_stop
from accelkit.launching.rendezvous import linger

_DETECTION_SECONDS = 2.0 * LOST_SECONDS
"""The shortest time, in seconds, that this machine waits after its processes have failed, so that the loss of a machine can be detected."""

_POLL_SECONDS = 0.1
_LOST = "lost the connection to "


class ElasticAgent(Agent):
    """An agent that runs the processes of this machine, and restarts them whenever a machine joins or leaves the job or is lost.

    Every rendezvous begins a new round. The first machine that notices a change writes a description of the change to the store of the
    current round. All machines then stop their processes with SIGTERM, as a scheduler does before a preemption, and start a new rendezvous.
    The processes are restarted on the machines that take part in the new rendezvous. These restarts do not count towards ``max_restarts``.

    Args:
        spec: The worker specification for torch.
        membership: The membership of this machine in the job. Its rendezvous is the one in ``spec``.
        others: The other arguments of ``Agent``.
    """

    def __init__(self, spec: WorkerSpec, membership: Membership, **others: Any) -> None:
        super().__init__(spec, membership.rendezvous, **others)
        self._membership = membership
        self._has_lost_a_machine = False

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._membership.rendezvous.has_changed = False
        is_complete = False
        while not is_complete:
            with contextlib.suppress(DistStoreError):  # a machine was lost in the middle of the rendezvous
                super()._rendezvous(worker_group)
                is_complete = True
        self._membership.members.watch(self._membership.rendezvous.watched)
        self._has_lost_a_machine = False
        machines, processes = worker_group.group_world_size or 1, worker_group.workers[0].world_size
        self._say(f"{machines} machine{'s' * (machines != 1)}, {processes} process{'es' * (processes != 1)} in all")

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._ranks is not None
        size = worker_group.group_world_size or 1
        change = self._change_behind_failure(size) if self._ranks.have_failed() else self._change(size)
        if not change:
            return super()._monitor_workers(worker_group)
        self._has_lost_a_machine = self._has_lost_a_machine or change.startswith(_LOST)  # perhaps another machine noticed the loss
        self._say(f"{change}; the processes are stopped, and restarted on the machines that are present")
        self._membership.rendezvous.has_changed = True
        return RunResult(WorkerState.HEALTHY)

    def _change(self, size: int) -> str:
        """Return why the processes have to stop for a new rendezvous, or "" if they do not have to.

        If a machine is lost, this method requests a new rendezvous. It also requests one if a machine waits to join the job, unless the
        processes of some machine have already finished. The result is "" if no rendezvous is requested, if another machine has ended the
        job, or if all processes have finished. This method is called only while no process of this machine has failed. ``size`` is the
        number of machines in the current round.
        """
        store = self._membership.rendezvous.store
        if size > 1:
            if self._read_remote_failure() is not None or self._everybody_has_finished(size):
                return ""
            if change := reason_to_stop(store) or self._loss():
                return change
        if int(store.add(FINISHED, 0)) == 0 and self._membership.rendezvous.has_newcomers():
            return ask_to_stop(store, "another machine is joining the job")
        return ""

    def _change_behind_failure(self, size: int) -> str:
        """Return the change on another machine that may have caused a failure on this machine, or "" if there is none.

        An example of such a change is the loss of the other machine. If the loss of a machine may have caused the failure, this method
        waits for at least ``_DETECTION_SECONDS``, and until every watched machine has either written a new heartbeat or been found to be
        lost. The result is also "" if another machine has ended the job.

        If no such change is found and restarts remain, this method asks the other machines to stop for a new rendezvous. ``size`` is the
        number of machines in the current round.
        """
        assert self._ranks is not None
        if size == 1:
            return ""
        self._ranks.wait_for_lost_peer(self._is_hurried)
        store, members = self._membership.rendezvous.store, self._membership.members
        deadline = time.monotonic()
        if failures.may_be_caused_elsewhere(self._ranks.endings):
            deadline += _DETECTION_SECONDS
            members.expect_heartbeats()
        while self._read_remote_failure() is None:
            if change := reason_to_stop(store) or self._loss():
                return change
            if (time.monotonic() >= deadline and not members.lacks_heartbeats) or self._is_hurried():
                own = f"a process on {socket.gethostname()} failed"
                asked = ask_to_stop(store, own) if self._remaining_restarts > 0 else own
                return "" if asked == own else asked
            time.sleep(_POLL_SECONDS)
        return ""

    def _loss(self) -> str:
        """If machines are lost, request a new rendezvous. Return the reason for the rendezvous, or "" if no machine is lost."""
        lost = self._membership.members.lost()
        self._has_lost_a_machine = self._has_lost_a_machine or bool(lost)
        return ask_to_stop(self._membership.rendezvous.store, f"{_LOST}{lost}") if lost else ""

    def _stop_workers(self, worker_group: WorkerGroup, *_: Any, **__: Any) -> None:
        if self._ranks is None:
            return
        grace = self._job.grace_period
        self._ranks.end(signal.SIGTERM, min(grace, AFTER_A_FAILURE) if self._has_lost_a_machine else grace, self._is_hurried)
        linger(self._membership.rendezvous.store, worker_group.group_world_size or 1, seconds=0)  # a leaving machine waits for this call

    def _shutdown(self, death_sig: signal.Signals | None = None, *_: Any, **__: Any) -> None:
        """End the processes at the end of the job, or because this process received the signal ``death_sig``.

        On SIGTERM, only this machine leaves the job, unless this process hosts the store that all machines use. In all other cases, a
        signal ends the whole job.
        """
        store = self._membership.rendezvous.store
        self.is_leaving = death_sig == signal.SIGTERM and not self._membership.is_host
        if death_sig is not None and store is not None:
            if self.is_leaving:
                with contextlib.suppress(RuntimeError):  # raised by torch if the host of the store has exited
                    ask_to_stop(store, f"{socket.gethostname()} is leaving the job, because it received SIGTERM")
            else:
                self._record_failure(f"it received {death_sig.name}")
        super()._shutdown(death_sig or signal.SIGTERM)
        if self.is_leaving and store is not None:
            linger(store, self.get_worker_group().group_world_size or 1)  # other machines may still need a store that this process hosts

    def announce_signal(self, name: str) -> None:
        """If the signal ends the whole job, tell the other machines. If only this machine leaves the job, do nothing."""
        if not self.is_leaving:
            super().announce_signal(name)
