"""If variables of a process are missing, have unexpected values or contradict each other, a cluster environment raises an error, or gives
the same values as with the correct variables. It never describes a job of a different size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelkit import AccelkitError
from accelkit.cluster.detection import SETTINGS
from accelkit.specs.cluster import PLACEMENT
from accelkit_conformance.checks import check
from accelkit_conformance.oracle import cluster_recordings
from accelkit_conformance.oracle.cluster_reading import (
    Answers,
    environment_for,
    large_jobs,
    own_descriptions,
    own_jobs,
    read,
    read_all,
)

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_PLACES = ("world_size", "global_rank", *PLACEMENT)
_NO_NUMBERS = ("nonsense", "-1", "1.5", "9" * 30)


def _last_processes(subject: Subject) -> Iterator[tuple[str, dict[str, str]]]:
    """For each job with several processes, yield the name and the environment variables of the job's last process."""
    for job in large_jobs(subject):
        with job[-1].variables() as environ:
            yield job[-1].name, environ


def _check_places(before: Answers, after: Answers, how: str) -> None:
    """Check that each rank and size has the same value in ``before`` and ``after``, unless it is an error in ``after``."""
    for name in _PLACES:
        if not isinstance(after[name], AccelkitError):
            said = f"{how}: {name} is silently {after[name]!r}"
            assert not isinstance(before[name], AccelkitError), f"{said} although it cannot be read with the unchanged variables"
            assert after[name] == before[name], f"{said} instead of {before[name]!r}"


@check("training", needs_hardware=False, kind="cluster")
def missing_variables_are_named(subject: Subject) -> None:
    """If one environment variable of a process is missing, every rank and every size either keeps its value or raises an error when it is
    read. In particular, the process is not silently treated as a single-process job. If a rank, a size or another setting, such as the main
    address, can no longer be read, the error says what to do. It also names at least one of the variables of the process, or says that the
    setting is not known before the processes join the process group."""
    for place, environ in _last_processes(subject):
        before = read_all(environment_for(subject, environ))
        for variable in environ:
            rest = {name: value for name, value in environ.items() if name != variable}
            after = read_all(environment_for(subject, rest))
            _check_places(before, after, f"{place} without {variable}")
            _check_errors(before, after, environ, f"{place} without {variable}")


def _check_errors(before: Answers, after: Answers, variables: dict[str, str], how: str) -> None:
    """Check the error of each property that can no longer be read after a change to the process's variables.

    Each error must say what to do. It must also name one of ``variables`` or be an UnknownPlacementError.

    Args:
        before: The value of each property with the unchanged variables, or the error that reading it raised.
        after: The value of each property with the changed variables, or the error that reading it raised.
        variables: Variables by name. An error must name at least one of them, unless it is an UnknownPlacementError.
        how: The process and the change, for messages.
    """
    for name in SETTINGS:
        error = after[name]
        if isinstance(error, AccelkitError) and not isinstance(before[name], AccelkitError):
            is_named = any(variable in str(error) for variable in variables)
            assert is_named or _is_unknown(error), f"{how}: the error of {name} names no variable: {error}"
            assert error.hint, f"{how}: the error of {name} does not say what to do: {error}"


def _is_unknown(error: AccelkitError) -> bool:
    """Return whether the error says that the requested property is not known before the processes join the process group."""
    return type(error).__name__ == "UnknownPlacementError"


@check("training", needs_hardware=False, kind="cluster")
def unexpected_values_are_named(subject: Subject) -> None:
    """If the value of a numeric variable is replaced by text, a fraction, a negative number or a number that is far too large, each rank
    and size keeps its value, or reading that rank or size raises an error. If a rank, a size or another setting, such as the main address,
    can no longer be read, the error says what to do. It also names the variable, or says that the setting is not known before the processes
    join the process group."""
    for place, environ in _last_processes(subject):
        before = read_all(environment_for(subject, environ))
        for variable in [name for name, value in environ.items() if value.isdigit()]:
            for value in _NO_NUMBERS:
                how = f"{place} with {variable}={value:.12}"
                after = read_all(environment_for(subject, {**environ, variable: value}))
                _check_places(before, after, how)
                _check_errors(before, after, {variable: value}, how)


@check("training", needs_hardware=False, kind="cluster")
def arbitrary_values_raise_only_accelkit_errors(subject: Subject) -> None:
    """If the value of one environment variable of a process is replaced by an empty string, a space, 0 or malformed text such as ``n[0-``,
    reading a property of the cluster environment gives a value or raises an AccelkitError. If a rank and the size that limits it can
    both be read, the rank is at least 0 and less than the size. This is checked for ``global_rank`` and ``world_size``, ``local_rank``
    and ``local_world_size``, and ``node_rank`` and ``num_nodes``.
    """
    for place, environ in _last_processes(subject):
        for variable in environ:
            for value in ("", " ", "nonsense", "²", "n[0-", "2(x", "a b", "\x1b[31m", "0"):
                how = f"{place} with {variable}={value!r}"
                try:
                    answers = read_all(environment_for(subject, {**environ, variable: value}))
                except AssertionError as error:
                    raise AssertionError(f"{how}: {error}") from error
                for rank, size in (("global_rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "num_nodes")):
                    if not isinstance(answers[rank], AccelkitError) and not isinstance(answers[size], AccelkitError):
                        assert 0 <= answers[rank] < answers[size], f"{how}: {rank}={answers[rank]}, {size}={answers[size]}"


@check("training", needs_hardware=False, kind="cluster")
def ranks_beyond_the_size_are_refused(subject: Subject) -> None:
    """If the variables of a process give a global rank equal to the number of processes in the job, reading ``global_rank`` raises an
    AccelkitError. The variables are generated from the plugin's descriptions of jobs. Descriptions in which no variable contains the
    global rank are skipped."""
    own_jobs(subject)
    for description in own_descriptions(subject):
        for shape in description.shapes:
            size = shape[0] * shape[1]
            values = {
                **dict.fromkeys(PLACEMENT, 0),
                "world_size": size, "local_world_size": shape[1], "num_nodes": shape[0], "global_rank": size,
                "job_id": cluster_recordings.JOB_ID, "port": cluster_recordings.PORT, "host": "machine-0", "main_host": "machine-0",
                "hosts": ",".join(f"machine-{index}" for index in range(shape[0])),
                "rank_hosts": ",".join(["machine-0"] * size), "rank_addresses": ",".join(["machine-0:29512"] * size),
            }  # fmt: skip
            if any("{global_rank}" in text for text in description.environ.values()):
                with description.process("beyond", values).variables() as environ:
                    found = read(environment_for(subject, environ), "global_rank")
                    assert isinstance(found, AccelkitError), (
                        f"{description.name}: global_rank is {found!r} in a job with {size} processes; use self.number(..., below=...)"
                    )
