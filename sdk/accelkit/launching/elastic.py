"""Run a job of ``accelkit launch`` with torch's elastic agent: https://docs.pytorch.org/docs/stable/distributed.elastic.html."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
import uuid
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from accelkit.errors import UnavailableError, UsageError
from accelkit.launching import process_tree
from accelkit.launching.agent import Agent, Say
from accelkit.launching.elastic_agent import ElasticAgent
from accelkit.launching.job import HERE, ROLE, Job
from accelkit.launching.membership import Members, Membership, join_job
from accelkit.launching.rendezvous import OrderedRendezvous, address_towards, in_this_process

_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_WAIT_SECONDS = 300
_REASONS: dict[type[Exception], str] = {
    RendezvousClosedError: "another machine has ended the job",
    RendezvousTimeoutError: "not all machines started the job in time",
}
"""The reasons for errors that torch raises without a message."""


def run(job: Job, say: Say) -> int:
    """Run a job on this machine until it ends.

    Call this in a dedicated process, because it handles signals and adopts orphaned processes.

    Args:
        job: The job to run.
        say: A function that tells the user what happened.

    Returns:
        The exit code for this machine:

        - 0 if the job succeeded. Also 0 if the number of machines may change and the job ended without needing this machine.
        - 128 plus the number of the signal if a signal told this process to end.
        - The exit code of the process that failed first, if any process on this machine failed.
        - 1 in all other cases: only another machine failed, the connection to the other machines was lost, or the number of machines is
          fixed and the job did not need this machine.

    Raises:
        UnavailableError: If the machines do not find each other.
        ContradictionError: If the machines disagree about their ranks.
        UsageError: If ``job.log_dir`` is not writable, or if ``job.rdzv_backend`` is invalid.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    process_tree.adopt_orphans()
    folder = _folder(job.log_dir)
    code = 1
    with _Signals() as signals:
        try:
            code = _run(job, folder, say, signals)
        except SignalException as error:
            code = 128 + error.sigval
            say(f"received {error.sigval.name}, and ended the processes; logs: {folder}")
        finally:
            if job.log_dir is None and code == 0:
                shutil.rmtree(folder, ignore_errors=True)
    return code


def _run(job: Job, folder: Path, say: Say, signals: _Signals) -> int:
    membership = _membership(job) if job.min_nodes is not None else None
    handler = _rendezvous(job) if membership is None else membership.rendezvous
    spec = WorkerSpec(
        role=ROLE,
        local_world_size=job.num_processes,
        rdzv_handler=handler,
        entrypoint=job.program.name,
        max_restarts=job.max_restarts,
        monitor_interval=job.monitor_interval,
    )
    others: dict[str, Any] = {"job": job, "folder": folder, "say": say, "is_hurried": signals.is_hurried}
    agent = Agent(spec, handler, **others) if membership is None else ElasticAgent(spec, membership, **others)
    result = None
    has_to_close = True
    try:
        result = agent.run()
    except SignalException as error:
        agent.announce_signal(error.sigval.name)
        has_to_close = not agent.is_leaving
        raise
    except (RendezvousError, DistError) as error:  # the store raises DistError if the machine that hosts the store has gone
        if membership is not None and isinstance(error, RendezvousTimeoutError):
            has_to_close = False  # other machines may still wait
            raise _too_few_machines(job, membership.members) from error
        if not agent.has_started:
            raise _rendezvous_error(job, error) from error
        say(f"lost the connection to the other machines of the job: {_reason(error)}; logs: {folder}")
        return 1
    finally:
        if has_to_close:
            with contextlib.suppress(RendezvousError):
                handler.shutdown()
        if membership is not None:
            membership.members.leave()
    if result is None:
        say("the job has ended; it had enough machines without this one")
        return int(membership is None)
    if agent.remote_failure:
        agent.leave()
        say(f"{agent.remote_failure}; logs: {folder}")
    if not result.is_failed():
        return 0
    return agent.cause.shell_code if agent.cause is not None else 1


def _membership(job: Job) -> Membership:
    """Join a job whose number of machines may change, and return the membership of this machine in the job."""
    try:
        return join_job(job)
    except (RendezvousError, DistError) as error:
        raise _rendezvous_error(job, error) from error


def _rendezvous(job: Job) -> OrderedRendezvous:
    """Return the rendezvous of this job's machines."""
    run_id = job.rdzv_id or uuid.uuid4().hex
    if job.num_nodes == 1 and job.rdzv_backend == "c10d" and not job.rdzv_endpoint:
        return OrderedRendezvous(in_this_process(run_id), job.node_rank, HERE)
    endpoint = job.rdzv_endpoint or f"{HERE}:0"
    options: dict[str, Any] = {"read_timeout": _WAIT_SECONDS} if job.rdzv_backend == "c10d" else {}
    address = HERE
    if not job.rdzv_endpoint:
        options["is_host"] = True
    elif job.num_nodes > 1:
        address = address_towards(endpoint)
        if job.rdzv_backend == "c10d" and job.node_rank is not None:
            options["is_host"] = job.node_rank == 0
        if job.node_rank == 0:
            address = endpoint.rpartition(":")[0].strip("[]") or address
    parameters = RendezvousParameters(
        backend=job.rdzv_backend,
        endpoint=endpoint,
        run_id=run_id,
        min_nodes=job.num_nodes,
        max_nodes=job.num_nodes,
        join_timeout=job.join_timeout,
        **options,
    )
    try:
        inner: RendezvousHandler = get_rendezvous_handler(parameters)
    except RendezvousConnectionError as error:
        raise _rendezvous_error(job, error) from error
    except (ValueError, ImportError) as error:
        raise UsageError(f"invalid --rdzv-backend {job.rdzv_backend}", why=str(error), hint="omit it to use c10d") from error
    return OrderedRendezvous(inner, job.node_rank, address)


def _rendezvous_error(job: Job, error: Exception) -> UnavailableError:
    why = _reason(error)
    hint = "start accelkit launch on every machine, with the same --main-address and --main-port, which all machines must be able to reach"
    if "EADDRINUSE" in why:
        hint = (
            "the port is in use on this machine. If another program uses it, choose another --main-port on every machine. "
            "If this job uses it, because it was also started here without --node-rank, give each machine its own --node-rank"
        )
    number = str(job.num_nodes) if job.min_nodes is None else f"{job.min_nodes} to {job.num_nodes}"
    return UnavailableError(
        f"the {number} machines of the job did not find each other at {job.rdzv_endpoint or 'this machine'}",
        why=why,
        hint=hint,
    )


def _too_few_machines(job: Job, members: Members) -> UnavailableError:
    try:
        hosts = members.present()
    except DistError as error:  # the machine that hosts the store waited in vain as well, and has ended
        return _rendezvous_error(job, error)
    present = f"{len(hosts)} {'is' if len(hosts) == 1 else 'are'} present"
    return UnavailableError(
        f"the job needs at least {job.min_nodes} machines, and after {job.join_timeout} seconds, {present}",
        why=f"these machines are at {job.rdzv_endpoint}: {', '.join(hosts)}",
        hint="start accelkit launch on more machines, with the same --main-address and --main-port; or reduce MIN of --num-nodes MIN:MAX, "
        "or increase --join-timeout. If the job has saved a checkpoint, it continues from there",
    )


def _reason(error: Exception) -> str:
    return _REASONS.get(type(error)) or str(error.__cause__ or error).partition("\n")[0][:300]


def _folder(log_dir: Path | None) -> Path:
    """Create a new folder for the logs of this launch and return its path."""
    if log_dir is None:
        return Path(tempfile.mkdtemp(prefix="accelkit-launch-"))
    folder = log_dir / f"{time.strftime('%Y%m%dT%H%M%S')}-{socket.gethostname()}-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot write to --log-dir {log_dir}", why=str(error), hint="choose a writable folder") from error
    return folder.absolute()


class _Signals:
    """A context manager that handles SIGTERM, SIGINT, SIGHUP and SIGQUIT.

    If SIGHUP is already ignored when the context is entered, as under ``nohup``, it is not handled. The first signal raises
    SignalException, and the processes then get time to save their state. After a second signal, ``is_hurried`` returns True, and the
    processes are killed immediately.
    """

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Signals:
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            is_ignored = name == "SIGHUP" and number is not None and signal.getsignal(number) is signal.SIG_IGN  # under nohup
            if number is not None and not is_ignored:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            raise SignalException(f"received {signal.Signals(number).name}", sigval=signal.Signals(number))

    def is_hurried(self) -> bool:
        return self._count > 1
