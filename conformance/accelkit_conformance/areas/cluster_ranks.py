"""The properties of a cluster environment have the right types and, for a recorded process, the expected values from the recording. The
values that the processes of one job report do not contradict each other. The plugin ships recordings of jobs, or a description from which
the suite generates jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from accelkit import AccelkitError, ContradictionError
from accelkit.cluster.detection import SETTINGS
from accelkit.specs.cluster import PLACEMENT
from accelkit_conformance.checks import check
from accelkit_conformance.oracle import cluster_recordings
from accelkit_conformance.oracle.cluster_guesses import guessed_answers
from accelkit_conformance.oracle.cluster_reading import (
    HELP,
    accelkit_errors_only,
    environment_for,
    job_answers,
    large_jobs,
    own_descriptions,
    own_jobs,
    own_processes,
    own_recordings,
    process_environment,
    read,
    read_all,
)
from accelkit_conformance.results import DECLARED_NONE, NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.oracle.cluster_recordings import Process
    from accelkit_conformance.subject import Subject

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(SETTINGS, (int,)),
    "main_address": (str,),
    "creates_processes_externally": (bool,),
    "job_id": (str, type(None)),
}
_PAIRS = (("global_rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "num_nodes"))


@check("full", needs_hardware=False, kind="cluster")
def package_has_sample_jobs(subject: Subject) -> None:
    """The plugin ships a recording of all processes of at least one job, or a description from which jobs can be generated."""
    folder = cluster_recordings.folder_of(subject.cls)
    package = subject.cls.__module__.rpartition(".")[0]
    where = f"the folder sample_jobs/ of the package {package}" if package else "a package (the class is in a module without one)"
    assert folder is not None, f"there are no recorded environments: ship them in {where}; see {HELP}"
    found = cluster_recordings.jobs(own_recordings(subject))
    assert found or own_descriptions(subject), f"{folder} has neither all processes of a job of {subject.record.name!r} nor a description"


@check("smoke", needs_hardware=False, kind="cluster")
def values_have_the_right_types(subject: Subject) -> None:
    """Ranks, sizes, the port and the restart count are ints, the address is a string, the job id is a string or None, and
    ``creates_processes_externally`` is a bool. All of these are properties, not methods. If the plugin ships neither a recording nor a
    description of its jobs, the check gives plausible values to the variables that the plugin reads."""
    for one in own_processes(subject):
        with one.variables() as environ:
            _check_types(read_all(environment_for(subject, environ)), one.name)
    if not own_processes(subject):
        _check_types(guessed_answers(subject), "with plausible values of the variables that it reads")


def _check_types(answers: dict[str, Any], place: str) -> None:
    for name, value in answers.items():
        if isinstance(value, AccelkitError):
            continue
        types = _TYPES[name]
        assert not callable(value), f"{place}: {name} is a method instead of a property: add @property"
        expected = " or ".join("None" if one is type(None) else one.__name__ for one in types)
        is_right = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        advice = "; self.number reads a variable as an int" if int in types and isinstance(value, str) else ""
        assert is_right, f"{place}: {name} is {value!r} ({type(value).__name__}) instead of {expected}{advice}"


@check("smoke", needs_hardware=False, kind="cluster")
def ranks_are_below_sizes(subject: Subject) -> None:
    """On every process, ``global_rank`` is less than ``world_size``, ``local_rank`` is less than ``local_world_size``, and ``node_rank`` is
    less than ``num_nodes``. No rank is negative, and no size exceeds ``world_size``."""
    for job in own_jobs(subject):
        with job_answers(subject, job) as everyone:
            for one, answers in zip(job, everyone, strict=True):
                for rank, size in _PAIRS:
                    if isinstance(answers[rank], int) and isinstance(answers[size], int):
                        said = f"{rank}={answers[rank]}, {size}={answers[size]}"
                        assert 0 <= answers[rank] < answers[size], f"{one.name}: {said}"
                        assert answers[size] <= answers["world_size"], f"{one.name}: {said}, world_size={answers['world_size']}"


@check("smoke", needs_hardware=False, kind="cluster")
def properties_match_recordings(subject: Subject) -> None:
    """If a recording contains an expected value for a property of the cluster environment, the property has this value. The expected value
    ``null`` means that the value is not known before the processes join the process group: reading the property then gives None or raises
    one of accelkit's errors. If a recording contains the text of an expected error, reading at least one property raises an error that
    contains this text."""
    for one in own_recordings(subject):
        with one.variables() as environ:
            answers = read_all(environment_for(subject, environ))
        expected = {name: value for name, value in one.expected.items() if name not in ("environment", "error")}
        for name, value in expected.items():
            found = answers[name]
            is_right = found == value or (value is None and isinstance(found, AccelkitError))
            assert is_right, f"{one.name}: {name} is {_spelled(found)}, but {value!r} was expected"
        if error := one.expected.get("error"):
            raised = [str(answer) for answer in answers.values() if isinstance(answer, AccelkitError)]
            assert any(error in text for text in raised), f"{one.name}: no error says {error!r}, but {raised}"


@check("smoke", needs_hardware=False, kind="cluster")
def processes_of_a_job_agree(subject: Subject) -> None:
    """Each global rank from 0 to ``world_size - 1`` belongs to exactly one process of the job. On each machine, each local rank from 0 to
    ``local_world_size - 1`` belongs to exactly one process. The machines have the node ranks from 0 to ``num_nodes - 1``. All processes
    report the same ``world_size``, ``num_nodes``, ``job_id`` and ``creates_processes_externally``."""
    for job in own_jobs(subject):
        with job_answers(subject, job) as everyone:
            place = job[0].name.rpartition("-")[0]
            for name in ("world_size", "num_nodes", "job_id", "creates_processes_externally"):
                said = {_spelled(answers[name]) for answers in everyone if not isinstance(answers[name], AccelkitError)}
                assert len(said) <= 1, f"{place}: the processes of one job say that {name} is {', '.join(sorted(said))}"
            ranks = [answers["global_rank"] for answers in everyone]
            assert ranks == list(range(len(job))), f"{place}: the global ranks are {', '.join(map(_spelled, ranks))}"
            assert everyone[0]["world_size"] == len(job), (
                f"{place}: world_size is {_spelled(everyone[0]['world_size'])}, but the number of processes is {len(job)}"
            )
            _check_machines(everyone, place)


def _check_machines(everyone: list[dict[str, Any]], place: str) -> None:
    """Check the node ranks of a job, and the local ranks and ``local_world_size`` on each machine.

    Do nothing unless all processes can read these values and ``num_nodes``.
    """
    if any(isinstance(answers[name], AccelkitError) for answers in everyone for name in PLACEMENT):
        return
    machines: dict[int, list[dict[str, Any]]] = {}
    for answers in everyone:
        machines.setdefault(answers["node_rank"], []).append(answers)
    assert sorted(machines) == list(range(everyone[0]["num_nodes"])), f"{place}: the node ranks are {sorted(machines)}"
    for node, members in machines.items():
        local = sorted(answers["local_rank"] for answers in members)
        assert local == list(range(len(members))), f"{place}: the local ranks on machine {node} are {local}"
        sizes = {answers["local_world_size"] for answers in members}
        assert sizes == {len(members)}, f"{place}: local_world_size is {sizes} on machine {node}, which has {len(members)} processes"


@check("smoke", needs_hardware=False, kind="cluster")
def generated_jobs_have_the_right_ranks(subject: Subject) -> None:
    """In jobs of several shapes that are generated from the plugin's description, every rank and size is right on every process. A
    value that depends on which machines the processes run on, such as a local rank, needs to be right only after the processes have
    exchanged the names of their machines."""
    descriptions = own_descriptions(subject)
    if not descriptions:
        raise NotSupported(f"generated jobs: {DECLARED_NONE}, because the plugin ships no description of a job")
    for job in own_jobs(subject):
        if job[0].host:
            with job_answers(subject, job) as everyone:
                for one, answers in zip(job, everyone, strict=True):
                    for name, value in one.expected.items():
                        is_right = name == "environment" or answers[name] == value or str(answers[name]) == value
                        assert is_right, f"{one.name}: {name} is {_spelled(answers[name])}, but {value} was expected"


@check("smoke", needs_hardware=False, kind="cluster")
def main_address_and_port_agree(subject: Subject) -> None:
    """``main_address`` and ``main_port`` are the same on all processes of a job, unless reading one of them raises an AccelkitError in any
    process. The port is between 1 and 65535. The address is not empty, and contains no port, bracket, slash, comma, space or newline."""
    for job in own_jobs(subject):
        with job_answers(subject, job) as everyone:
            places = [(_spelled(answers["main_address"]), _spelled(answers["main_port"])) for answers in everyone]
            if all("AccelkitError" not in text for place in places for text in place):
                said = ", ".join(sorted({":".join(place) for place in places}))
                assert len(set(places)) == 1, f"{job[0].name.rpartition('-')[0]}: the processes of one job meet at {said}"
            for one, answers in zip(job, everyone, strict=True):
                address, port = answers["main_address"], answers["main_port"]
                assert not isinstance(port, int) or 0 < port < 65536, f"{one.name}: main_port is {port}"
                is_host = not isinstance(address, str) or (address and not set(address) & set(" []/,\n") and address.count(":") != 1)
                assert is_host, f"{one.name}: main_address is {address!r}, which is not one host name or address"


@check("smoke", needs_hardware=False, kind="cluster")
def jobs_have_ports_of_their_own(subject: Subject) -> None:
    """Two jobs with consecutive job ids have different values of ``main_port``, so that both jobs can run on one machine. The check creates
    two jobs from each job description that the plugin ships, but skips descriptions that contain neither variables nor files. If the
    description says that the launcher passes a port to the processes, the check passes each job its own port.
    """
    descriptions = [one for one in own_descriptions(subject) if one.environ or one.files]
    if not descriptions:
        raise NotSupported(f"the plugin ships no description of a job: see {HELP}")
    for description in descriptions:
        nodes, local = description.shapes[-1]
        ports = []
        for number in range(2):
            job = description.job(nodes, local, job_id=cluster_recordings.JOB_ID + number, port=cluster_recordings.PORT + number)
            with job_answers(subject, job) as everyone:
                ports.append(everyone[0]["main_port"])
        assert ports[0] != ports[1], f"{description.name}: two jobs have the port {ports[0]}; use port_for_job(number of the job)"


@check("smoke", needs_hardware=False, kind="cluster")
def launcher_starts_the_processes(subject: Subject) -> None:
    """``creates_processes_externally`` is True in every process of a job with several processes. If it were False, accelkit would not
    compare the Runtime's settings with the processes that were started.
    """
    for job in large_jobs(subject):
        with job_answers(subject, job) as everyone:
            for one, answers in zip(job, everyone, strict=True):
                found = answers["creates_processes_externally"]
                assert found is True, f"{one.name}: creates_processes_externally is {found} in a job with {len(job)} processes"


@check("smoke", needs_hardware=False, kind="cluster")
def settings_are_compared(subject: Subject) -> None:
    """``validate_settings`` accepts None, and accepts the numbers of machines and of devices per machine with which a job was started. For
    other numbers, it raises a ContradictionError."""
    for job in large_jobs(subject):
        first = job[0]
        devices, nodes = first.expected.get("local_world_size"), first.expected.get("num_nodes")
        if devices is None or nodes is None or devices * nodes != len(job) or first.expected.get("error"):
            continue
        with first.variables() as environ:
            environment = environment_for(subject, environ)
            with accelkit_errors_only("validate_settings"):
                environment.validate_settings(devices, nodes)
                environment.validate_settings(None, None)
            for wrong in ((devices + 1, nodes), (devices, nodes + 1)):
                try:
                    with accelkit_errors_only("validate_settings"):
                        environment.validate_settings(*wrong)
                except ContradictionError:
                    continue
                raise AssertionError(f"{first.name}: validate_settings{wrong} was accepted in a job with {nodes} x {devices} processes")


@check("smoke", needs_hardware=False, kind="cluster")
def reading_changes_nothing(subject: Subject) -> None:
    """Reading all properties of an instance changes neither ``os.environ`` nor the ``environ`` of the instance, and a second reading gives
    the same values."""
    for one in own_processes(subject):
        with one.variables() as environ:
            before, whole = dict(environ), dict(os.environ)
            environment = environment_for(subject, environ)
            first = {name: _spelled(value) for name, value in read_all(environment).items()}
            again = {name: _spelled(read(environment, name)) for name in reversed(SETTINGS)}
            _check_unchanged(whole, dict(os.environ), "os.environ", one)
            _check_unchanged(before, environ, "environ", one)
            changed = [f"{name} was {first[name]} and then {again[name]}" for name in SETTINGS if first[name] != again[name]]
            assert not changed, f"{one.name}: {changed[0]}"


def _check_unchanged(before: dict[str, str], after: dict[str, str], which: str, place: Process) -> None:
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    assert not changed, f"{place.name}: reading changed {which}: {', '.join(changed)}"


@check("smoke", needs_hardware=False, kind="cluster")
def only_its_own_variables_are_read(subject: Subject) -> None:
    """Each instance reads only the variables in its own ``environ``. This also holds if ``os.environ`` contains the variables of another
    process of the job, and if the properties of that process's instance have been read before."""
    for job in own_jobs(subject):
        first, last = job[0], job[-1]
        with first.variables() as others, last.variables() as environ:
            alone = {name: _spelled(value) for name, value in read_all(environment_for(subject, environ)).items()}
            with process_environment(others):
                read_all(environment_for(subject, others))
                found = {name: _spelled(value) for name, value in read_all(environment_for(subject, environ)).items()}
        wrong = [f"{name} is {found[name]} instead of {alone[name]}" for name in SETTINGS if found[name] != alone[name]]
        assert not wrong, f"{last.name}: {wrong[0]} if os.environ has the variables of {first.name}: read self.environ"


def _spelled(value: object) -> str:
    return f"AccelkitError: {value}" if isinstance(value, AccelkitError) else repr(value)
