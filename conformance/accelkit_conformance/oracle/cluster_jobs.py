"""Find or generate jobs of a cluster environment, and run their processes on this machine."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from accelkit import AccelkitError
from accelkit_conformance.oracle import cluster_member, cluster_recordings
from accelkit_conformance.oracle.cluster_reading import environment_for, large_jobs, own_descriptions, read
from accelkit_conformance.oracle.cluster_recordings import Description, Process
from accelkit_conformance.oracle.free_ports import free_ports, is_free, is_this_machine, own_host
from accelkit_conformance.results import NotSupported
from accelkit_conformance.subprocess_checks import about, ask

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_ATTEMPTS = 20
_START_SECONDS = 90.0
"""The time in seconds that is allowed for a process to start and import torch."""
_NO_JOB = 999_999_999
"""A job id that no scheduler has assigned."""


def job_on_this_machine(subject: Subject) -> list[Process]:
    """Return the processes of a job that can run on this machine and has several processes.

    The rendezvous port of the job is free. If the plugin ships descriptions of jobs, the job is generated from a description, with as few
    processes as possible. Otherwise, the job is one of the recorded jobs.

    Raises:
        NotSupported: If the plugin has no job with several processes, or if none of these jobs can run on this machine.
        AssertionError: If ``main_address`` or ``main_port`` of a job cannot be read. This error also replaces NotSupported if no job can
            run and at least two of the ports that ``main_port`` returned are in use. In this case, the plugin itself probably listens on
            these ports.
    """
    recorded = large_jobs(subject)
    problem = "the plugin describes no job of several processes"
    taken: set[int] = set()
    for job in _candidates(subject, recorded):
        with job[0].variables() as environ:
            environment = environment_for(subject, environ)
            address, port = read(environment, "main_address"), read(environment, "main_port")
        for value in (address, port):
            assert not isinstance(value, AccelkitError), f"{job[0].name}: the rendezvous address or port cannot be read: {value}"
        if not is_this_machine(str(address)):
            problem = f"the processes of {job[0].name} meet at {address}, which is not an address of this machine"
        elif not is_free(port):
            taken.add(port)
            problem = f"the processes of {job[0].name} meet at port {port}, which another process of this machine uses"
        else:
            return job
    assert len(taken) < 2, (
        f"the ports of {len(taken)} jobs are in use after main_port was read, such as {min(taken)}: does main_port listen there?"
    )
    raise NotSupported(problem)


def _candidates(subject: Subject, recorded: Sequence[list[Process]]) -> Iterator[list[Process]]:
    """Yield jobs that may be able to run on this machine: jobs generated from descriptions that the plugin ships, or, if it ships none, the
    recorded jobs. Jobs generated from the same description differ in their job id and port."""
    descriptions = own_descriptions(subject)
    if not descriptions:
        yield from recorded
    for description in descriptions:
        shape = _smallest(description)
        if shape is not None:
            hosts = [own_host()] * shape[0]
            for _ in range(_ATTEMPTS):
                number = cluster_recordings.JOB_ID + secrets.randbelow(1_000_000)
                yield description.job(*shape, job_id=number, port=free_ports(1)[0], hosts=hosts)


def _smallest(description: Description) -> tuple[int, int] | None:
    """Return the shape (machines, processes per machine) of the smallest job with several processes, preferably on one machine.

    Return None if the description has no job with several processes.
    """
    return min(
        (shape for shape in description.shapes if math.prod(shape) > 1), key=lambda shape: (math.prod(shape), shape[0]), default=None
    )


def run_job(subject: Subject, job: Sequence[Process], seconds: float) -> list[dict[str, Any]]:
    """Run the processes of a job. The processes join a process group and reduce a tensor.

    Args:
        subject: The plugin under test.
        job: The processes, ordered by rank.
        seconds: The time in seconds for which a process waits for the other processes.

    Returns:
        A dictionary for each process, ordered by rank. The dictionary contains the ``rank`` of the process, the ``size`` and the
        ``backend`` of the process group, and the reduced tensor as the number ``total``. If the process raised an exception, the dictionary
        contains only ``error``.

    Raises:
        AssertionError: If a process ends without returning its dictionary, or exceeds its time limit.
    """
    with ExitStack() as stack, ThreadPoolExecutor(len(job)) as pool:
        requests = []
        for one in job:
            variables = stack.enter_context(one.variables())
            requests.append((about(subject.record) | {"variables": variables, "seconds": seconds}, variables))
        answers = [
            pool.submit(ask, cluster_member.__name__, request, seconds + _START_SECONDS, cluster_member.UNSET | variables)
            for request, variables in requests
        ]
        return [one.result() for one in answers]


def job_of_no_scheduler(subject: Subject) -> dict[str, str]:
    """Return the environment variables of one process of a generated job. The id of the job is invented, so no scheduler has such a job. If
    the plugin ships no description of a job, return an empty dictionary."""
    for description in own_descriptions(subject):
        return dict(description.job(*description.shapes[0], job_id=_NO_JOB)[0].environ)
    return {}
