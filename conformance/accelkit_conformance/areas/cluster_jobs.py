"""Behaviour of a cluster environment in a job: the processes of the job find each other, ``is_preempted`` returns within a time limit, and
``requeue`` does not return True if it cannot reach the scheduler. The checks send no requests to a scheduler."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from accelkit import AccelkitError, ClusterEnvironment
from accelkit.specs.overrides import overrides
from accelkit_conformance.checks import check
from accelkit_conformance.oracle.cluster_jobs import job_of_no_scheduler, job_on_this_machine, run_job
from accelkit_conformance.oracle.cluster_reading import environment_for
from accelkit_conformance.oracle.confinement import confined
from accelkit_conformance.results import DECLARED_NONE, NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_JOIN_SECONDS = 20.0
_LONGEST_NOTICE_SECONDS = 30.0
_LONGEST_INTERVAL = 3600  # the Runtime refuses a longer one


@check("distributed", needs_hardware=False, kind="cluster", seconds=180)
def processes_find_each_other(subject: Subject) -> None:
    """The check starts a job with at least two processes on this machine. The processes read their ranks from the cluster environment, form
    a process group and reduce a tensor. The job is the smallest that can be generated from the plugin's description of jobs. If the plugin
    ships no description, the job is a recorded job."""
    job = job_on_this_machine(subject)
    answers = run_job(subject, job, _JOIN_SECONDS)
    size = len(job)
    for rank, (one, found) in enumerate(zip(job, answers, strict=True)):
        assert "error" not in found, f"{one.name}: rank {rank} of {size} did not join the others: {found.get('error')}"
    for rank, (one, found) in enumerate(zip(job, answers, strict=True)):
        assert (found["rank"], found["size"]) == (rank, size), f"{one.name}: it joined as rank {found['rank']} of {found['size']}"
        total = size * (size + 1) / 2
        assert found["total"] == total, f"{one.name}: the sum of 1 to {size} from {size} processes is {found['total']:g}, not {total:g}"


@check("training", needs_hardware=False, kind="cluster", seconds=60)
def is_preempted_returns_a_bool(subject: Subject) -> None:
    """``preemption_poll_seconds`` is a number greater than 0 and at most 3600. ``is_preempted`` returns True or False, and raises no error.
    The check calls ``is_preempted`` in a background thread, as a Runtime does. The call returns within 30 seconds, and within six times
    ``preemption_poll_seconds``. If a call takes longer than six times ``preemption_poll_seconds``, a Runtime warns.
    """
    environment = environment_for(subject, job_of_no_scheduler(subject))
    if not overrides(environment, ClusterEnvironment, "is_preempted"):
        raise NotSupported(f"notices of preemption: {DECLARED_NONE} (is_preempted is not overridden)")
    interval = environment.preemption_poll_seconds
    is_valid = isinstance(interval, int | float) and not isinstance(interval, bool) and 0 < interval <= _LONGEST_INTERVAL
    what = f"preemption_poll_seconds is {interval!r:.60} ({type(interval).__name__})"
    assert is_valid, f"{what} instead of a number greater than 0 and at most {_LONGEST_INTERVAL}"
    seconds = min(6 * interval, _LONGEST_NOTICE_SECONDS)
    answers: list[object] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            answers.append(environment.is_preempted())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"is_preempted did not return within {seconds:g} s; give its request a time limit"
    for error in errors:
        raise AssertionError(f"is_preempted raised {type(error).__name__}, in a thread as the Runtime calls it: {error}") from error
    assert isinstance(answers[0], bool), f"is_preempted returned {answers[0]!r:.80} ({type(answers[0]).__name__}) instead of True or False"


@check("training", needs_hardware=False, kind="cluster", seconds=90)
def requeue_without_scheduler_is_an_error(subject: Subject) -> None:
    """During the check, this process cannot start a program, open a connection or send a signal, as on a machine without a scheduler. If
    ``requeue`` attempts any of these, it raises one of accelkit's errors, or returns False or None. If ``requeue`` attempts none of them,
    it may also return True. The error names the plugin and says what to do. ``requeue`` does not end the process. The check uses a job id
    that no scheduler has assigned."""
    environment = environment_for(subject, job_of_no_scheduler(subject))
    if not overrides(environment, ClusterEnvironment, "requeue"):
        raise NotSupported(f"requeue: {DECLARED_NONE} (it is not overridden)")
    refusal = None
    with confined() as attempts:
        try:
            answer = environment.requeue()
        except AccelkitError as error:
            answer, refusal = None, error
        except SystemExit as error:
            raise AssertionError(f"requeue ends the process: it raised SystemExit({error.code!r}); raise an UnavailableError") from error
        except Exception as error:
            raise AssertionError(f"requeue raised {type(error).__name__}: {error}; raise an UnavailableError that says why") from error
    if refusal is not None:
        plugin = subject.record.plugin
        assert refusal.plugin == plugin, f"the error of requeue does not name the plugin {plugin}: {refusal}"
        assert refusal.hint, f"the error of requeue does not say what to do: {refusal}"
    said = f"requeue returned {answer!r:.80} ({type(answer).__name__}) instead of True, False or None"
    assert answer is None or isinstance(answer, bool), said
    assert not (answer and attempts), f"requeue returned True, although it could not {attempts[0]}"
