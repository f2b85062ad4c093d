"""Functions that read a cluster environment's properties, for the checks of the areas ``cluster_*``. This module does not import
torch."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelkit import AccelkitError, ClusterEnvironment
from accelkit.cluster.detection import SETTINGS
from accelkit_conformance.oracle import cluster_recordings
from accelkit_conformance.oracle.cluster_recordings import Description, Process
from accelkit_conformance.results import DECLARED_NONE, NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Answers = dict[str, Any]
"""The values of the properties by name. An AccelkitError stands for a property that could not be read."""


def own_processes(subject: Subject) -> list[Process]:
    """Return the processes of jobs in the plugin's cluster environment: those that were recorded, then those made from descriptions."""
    made_up = [one for description in own_descriptions(subject) for shape in description.shapes for one in description.job(*shape)]
    return [*own_recordings(subject), *made_up]


def own_recordings(subject: Subject) -> list[Process]:
    """Return the recorded processes that the plugin ships for its own cluster environment."""
    return [one for one in _shipped(subject)[0] if one.environment == subject.record.name]


def own_descriptions(subject: Subject) -> list[Description]:
    """Return the job descriptions that the plugin ships for its own cluster environment."""
    return [one for one in _shipped(subject)[1] if one.expected["environment"] == subject.record.name]


def own_jobs(subject: Subject) -> list[list[Process]]:
    """Return the jobs in the plugin's cluster environment.

    The list starts with the jobs whose processes have all been recorded, followed by the generated jobs. The processes of a job are ordered
    by rank, except in recorded jobs whose ranks are not known until the processes have joined the process group. The processes of such a
    job are in the same order as in the JSON file.

    Raises:
        NotSupported: If there is no such job.
    """
    found = cluster_recordings.jobs(own_recordings(subject))
    found += [description.job(*shape) for description in own_descriptions(subject) for shape in description.shapes]
    if not found:
        raise NotSupported(f"the plugin ships neither a recorded job nor a description of one: see {HELP}")
    return found


HELP = "docs/vendors/cluster-environment.md, 'Record the environments of jobs'"


def large_jobs(subject: Subject) -> list[list[Process]]:
    """Return the recorded and generated jobs that have several processes (see ``own_jobs``).

    Raises:
        NotSupported: If there is no such job.
    """
    found = [job for job in own_jobs(subject) if len(job) > 1]
    if not found:
        why = "because every complete job that the plugin ships has only one process"
        raise NotSupported(f"jobs of several processes: {DECLARED_NONE}, {why}")
    return found


def foreign_processes(subject: Subject) -> list[Process]:
    """Return the recorded processes of all cluster environments except the plugin's.

    The recordings are those that accelkit and the plugin ship.
    """
    every = {one.name: one for one in [*cluster_recordings.builtin_processes(), *_shipped(subject)[0]]}
    return [one for one in every.values() if one.environment != subject.record.name]


def _shipped(subject: Subject) -> tuple[Sequence[Process], Sequence[Description]]:
    folder = cluster_recordings.folder_of(subject.cls)
    return ((), ()) if folder is None else cluster_recordings.read(folder)


def environment_for(subject: Subject, environ: Mapping[str, str]) -> ClusterEnvironment:
    """Return a new instance of the plugin that reads these variables."""
    environment: ClusterEnvironment = subject.plugin()
    environment.environ = environ
    return environment


def read(environment: ClusterEnvironment, name: str) -> Any:
    """Return the value of a property, or the AccelkitError that reading it raised.

    Raises:
        AssertionError: If reading the property raised another error.
    """
    with accelkit_errors_only(f"reading {name}"):
        try:
            return getattr(environment, name)
        except AccelkitError as error:
            return error


@contextlib.contextmanager
def accelkit_errors_only(doing: str) -> Iterator[None]:
    """Context manager for calls to the plugin. Warnings are ignored. An AccelkitError or AssertionError propagates unchanged.

    Raises:
        AssertionError: If the block raises any other error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (AccelkitError, AssertionError):
        raise
    except Exception as error:
        raise AssertionError(
            f"{doing} raised {type(error).__name__}: {error}; "
            "read variables with self.number, self.address, self.port and self.text, whose errors name the variable"
        ) from error


def read_all(environment: ClusterEnvironment) -> Answers:
    """Return the values of all properties."""
    return {name: read(environment, name) for name in SETTINGS}


@contextlib.contextmanager
def job_answers(subject: Subject, job: Sequence[Process]) -> Iterator[list[Answers]]:
    """Return a context manager that yields, for each process of a job, the values of all properties of the cluster environment.

    If the environment variables of a generated job do not say which processes run on the same machine, the processes first exchange the
    names of their machines.
    """
    with contextlib.ExitStack() as stack:
        environments = [environment_for(subject, stack.enter_context(one.variables())) for one in job]
        with accelkit_errors_only("working out the placement of the processes"):
            if job[0].host and any(one.needs_placement_exchange() for one in environments):
                places = [
                    dataclasses.replace(environment.place(), host=one.host, machine=one.host)
                    for environment, one in zip(environments, job, strict=True)
                ]
                for environment in environments:
                    environment.resolve_placement(places)
        yield [read_all(environment) for environment in environments]


@contextlib.contextmanager
def process_environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Context manager that adds variables to ``os.environ``, and restores it at the end of the block."""
    before = dict(os.environ)
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
