"""A cluster environment claims the processes of its own jobs, and no processes of other cluster environments (foreign processes). The
variables of foreign processes are read from the recordings that accelkit ships, and from recordings that the plugin ships."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit import ClusterDetection, ClusterEnvironment
from accelkit.cluster.detection import make_environment
from accelkit.discovery.catalog import plugins
from accelkit_conformance.checks import check
from accelkit_conformance.oracle.cluster_reading import environment_for, foreign_processes, own_processes, process_environment
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accelkit_conformance.oracle.cluster_recordings import Process
    from accelkit_conformance.subject import Subject


def _builtins(subject: Subject) -> list[ClusterEnvironment]:
    """Return accelkit's own cluster environments, except the environment under test."""
    return [make_environment(one.name, {}) for one in plugins("cluster") if one.is_builtin and one.name != subject.record.name]


def _claim(subject: Subject, argument: Mapping[str, str], environ: Mapping[str, str], place: str) -> ClusterDetection | None:
    """Create an instance of the plugin, let it read ``environ``, call its ``detect_cluster(argument)``, and check and return the result."""
    claim = environment_for(subject, environ).detect_cluster(argument)
    if claim is None:
        return None
    assert isinstance(claim, ClusterDetection), (
        f"{place}: detect_cluster returned {claim!r:.80} ({type(claim).__name__}) instead of a ClusterDetection"
    )
    assert claim.name == subject.record.name, f"{place}: it claims the process for {claim.name!r}, not for {subject.record.name!r}"
    assert isinstance(claim.priority, int), f"{place}: the priority of the claim is {claim.priority!r} ({type(claim.priority).__name__})"
    assert claim.reason, f"{place}: the claim has no reason"
    return claim


def _processes(subject: Subject) -> list[Process]:
    found = own_processes(subject)
    if not found:
        raise NotSupported("the plugin ships no recorded environment of its own jobs")
    return found


@check("smoke", needs_hardware=False, kind="cluster")
def own_jobs_are_claimed(subject: Subject) -> None:
    """``detect_cluster`` claims every process of the plugin's own jobs. The claim contains the plugin's name and a reason. The priority of
    the claim is not negative, and is higher than the priority of any claim that accelkit's own environments make on the same process."""
    others = _builtins(subject)
    for one in _processes(subject):
        with one.variables() as environ:
            claim = _claim(subject, environ, environ, one.name)
            assert claim is not None, f"{one.name}: it does not claim a process of its own job"
            assert claim.priority >= 0, f"{one.name}: it declines a process of its own job: {claim.reason}"
            for other in others:
                rival = other.detect_cluster(environ)
                assert rival is None or rival.priority < claim.priority, (
                    f"{one.name}: {other.name} claims the process with the priority {rival.priority}; "
                    f"the plugin's own priority, {claim.priority}, is not higher"
                )


@check("smoke", needs_hardware=False, kind="cluster")
def foreign_jobs_are_not_claimed(subject: Subject) -> None:
    """For a process of another cluster environment that is built into accelkit, ``detect_cluster`` either makes no claim, or makes a claim
    with a lower priority than the built-in environment's claim. A ``ClusterDetection`` with a negative priority is not a claim: it says why
    ``detect_cluster`` does not claim the process.
    """
    owners = {other.name: other for other in _builtins(subject)}
    for one in foreign_processes(subject):
        with one.variables() as environ:
            claim = _claim(subject, environ, environ, one.name)
            owner = owners[one.environment].detect_cluster(environ) if one.environment in owners else None
        if claim is not None and owner is not None:
            assert claim.priority < owner.priority, (
                f"{one.name}: it claims a process of {one.environment} with the priority {claim.priority}: {claim.reason}; "
                f"{one.environment} claims it with {owner.priority}"
            )


@check("smoke", needs_hardware=False, kind="cluster")
def detection_uses_its_argument(subject: Subject) -> None:
    """The claim that ``detect_cluster`` returns depends only on the variables that are passed to the method. It does not depend on
    ``os.environ``, on the instance's own ``environ`` or on an earlier call. The method does not change the variables."""
    for one in _processes(subject):
        with one.variables() as environ:
            before = dict(environ)
            claim, nothing = _claim(subject, environ, {}, one.name), _claim(subject, {}, {}, "without variables")
            assert environ == before, f"{one.name}: detect_cluster changed the variables that were passed to it"
            with process_environment(environ):
                found = _claim(subject, {}, environ, one.name)
            assert found == nothing, (
                f"{one.name}: called without variables, detect_cluster returns {found} if os.environ and the instance's own environ have "
                "the variables of the process"
            )
            assert claim == _claim(subject, environ, environ, one.name), f"{one.name}: the claim depends on environ or on an earlier call"


@check("smoke", needs_hardware=False, kind="cluster")
def detection_survives_any_value(subject: Subject) -> None:
    """Even if one of the environment variables of a process is missing, is empty or has an unexpected value, ``detect_cluster`` raises no
    error, and returns None or a ClusterDetection. The method must not fail, because it may be called in any process,
    including processes that do not belong to this cluster environment."""
    for one in _processes(subject):
        with one.variables() as environ:
            for variable in environ:
                for value in (None, "", "nonsense", "-1", "9" * 30, "²"):
                    changed = {name: text for name, text in environ.items() if name != variable}
                    changed |= {} if value is None else {variable: value}
                    try:
                        claim = environment_for(subject, changed).detect_cluster(changed)
                    except Exception as error:
                        how = f"without {variable}" if value is None else f"with {variable}={value!r:.20}"
                        raise AssertionError(f"{one.name} {how}: detect_cluster raised {type(error).__name__}: {error}") from error
                    assert claim is None or isinstance(claim, ClusterDetection), f"{one.name}: it returned {type(claim).__name__}"
