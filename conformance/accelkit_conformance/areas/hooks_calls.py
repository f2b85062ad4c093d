"""The hook implementations of a plugin return in time, without unexpected errors, and with results of the right types. They change neither
the results of training nor the state of the process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accelkit import Availability, ClusterDetection
from accelkit_conformance.checks import check
from accelkit_conformance.oracle import cluster_recordings
from accelkit_conformance.oracle.call_limit import limited
from accelkit_conformance.oracle.hook_calls import HookCalls, new_plugin, train

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_EVENTS = (
    "runtime_created",
    "process_group_initialized",
    "checkpoint_saved",
    "checkpoint_loaded",
    "job_preempted",
    "setup_device",
    "teardown",
)
_TRAINING_SECONDS = 20.0


@check("smoke", needs_hardware=False, kind="hooks")
def events_return_in_time(subject: Subject) -> None:
    """Every hook that reacts to an event returns within two seconds, without an error, each time it is called."""
    calls = HookCalls(subject)
    for hook in calls.implemented(_EVENTS):
        for _ in range(2):
            calls.call(hook)


@check("smoke", needs_hardware=False, kind="hooks")
def statistics_are_numbers_by_name(subject: Subject) -> None:
    """``get_device_stats`` returns a mapping from names to finite numbers. In each name, the last dot separates the unit from the rest, as
    in ``memory.allocated.bytes``."""
    calls = HookCalls(subject)
    for hook in calls.implemented(("get_device_stats",)):
        for found in calls.call(hook):
            assert isinstance(found, Mapping), f"{hook} returned {found!r:.80} ({type(found).__name__}) instead of a dict of statistics"
            for name, value in found.items():
                assert "." in str(name), f"{hook}: the name {name!r} has no unit, as in memory.allocated.bytes"
                is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
                assert is_number, f"{hook}: {name} is {value!r:.80} ({type(value).__name__}) instead of a number"


@check("smoke", needs_hardware=False, kind="hooks")
def doctor_checks_are_availabilities(subject: Subject) -> None:
    """``doctor_checks`` returns a mapping from the names of checks to Availability objects. An Availability whose status is not ``usable``
    has a reason."""
    calls = HookCalls(subject)
    for hook in calls.implemented(("doctor_checks",)):
        for found in calls.call(hook):
            assert isinstance(found, Mapping), f"{hook} returned {found!r:.80} ({type(found).__name__}) instead of a dict of checks"
            for name, value in found.items():
                assert isinstance(value, Availability), f"{hook}: {name} is {value!r:.80} ({type(value).__name__}), not an Availability"
                assert value.is_usable or value.reason, f"{hook}: {name} is {value.status} without a reason"


@check("smoke", needs_hardware=False, kind="hooks")
def make_precision_ignores_unknown_names(subject: Subject) -> None:
    """For the name ``32-true``, ``make_precision`` returns a Precision or None. For a name that no precision has, it returns None."""
    from accelkit import Precision

    calls = HookCalls(subject)
    for hook in calls.implemented(("make_precision",)):
        known = calls.call(hook, name="32-true")
        is_right = known is None or isinstance(known, Precision)
        assert is_right, f"{hook}('32-true') returned {known!r:.80} ({type(known).__name__}) instead of a Precision or None"
        unknown = calls.call(hook, name="no-such-precision")
        assert unknown is None, f"{hook}('no-such-precision') returned {unknown!r:.80} instead of None, so a misspelt name is accepted"


@check("smoke", needs_hardware=False, kind="hooks")
def jobs_of_others_are_not_claimed(subject: Subject) -> None:
    """``detect_cluster`` does not claim jobs, such as SLURM jobs, for which accelkit has its own cluster environment. Given the environment
    variables of such a job, it returns None, or a ClusterDetection that has a reason and a lower ``priority`` than the ClusterDetection
    that accelkit's own cluster environment returns. It does not change the variables.
    """
    from accelkit.cluster.detection import make_environment

    calls = HookCalls(subject)
    for hook in calls.implemented(("detect_cluster",)):
        for one in cluster_recordings.builtin_processes():
            with one.variables() as environ:
                before = dict(environ)
                owner = make_environment(one.environment, environ).detect_cluster(environ)
                for claim in calls.call(hook, environ=environ):
                    said = f"{hook} returned {claim!r:.80} ({type(claim).__name__}) instead of a ClusterDetection or None"
                    assert isinstance(claim, ClusterDetection), said
                    assert claim.reason, f"{one.name}: the claim has no reason"
                    assert owner is None or claim.priority < owner.priority, (
                        f"{one.name}: it claims a process of {one.environment}: {claim.reason}"
                    )
                assert environ == before, f"{one.name}: {hook} changed the variables"


@check("smoke", needs_hardware=False, kind="hooks")
def requeue_returns_a_bool_or_none(subject: Subject) -> None:
    """``requeue`` returns True, False or None, or raises one of accelkit's errors. The check prevents ``requeue`` from starting programs,
    sending signals and opening connections. If ``requeue`` tries to do one of these things, it may raise any error."""
    calls = HookCalls(subject)
    for hook in calls.implemented(("requeue",)):
        answer = calls.call_confined(hook)
        said = f"{hook} returned {answer!r:.80} ({type(answer).__name__}) instead of True, False or None"
        assert answer is None or isinstance(answer, bool), said


@check("training", needs_hardware=False, kind="hooks")
def training_is_unchanged(subject: Subject) -> None:
    """A model that is trained, saved and loaded with the plugin has, bit for bit, the weights of a model that is trained without the
    plugin."""
    import torch

    without, plugin = train([]), new_plugin(subject)
    with limited(subject, "training with the plugin", _TRAINING_SECONDS):
        with_plugin = train([plugin])
    changed = [name for name, value in without.items() if not torch.equal(value, with_plugin[name])]
    assert not changed, f"with the plugin, these weights differ after three steps: {', '.join(changed)}"


@check("training", needs_hardware=False, kind="hooks")
def process_is_unchanged(subject: Subject) -> None:
    """Calling the plugin's hooks (except ``detect_cluster`` and ``requeue``) changes neither ``os.environ``, nor the working directory, nor
    torch's default dtype or grad mode."""
    calls = HookCalls(subject)
    for hook in calls.implemented((*_EVENTS, "get_device_stats", "doctor_checks", "make_precision")):
        calls.call(hook)
        assert not calls.changes, f"{hook} changed {', '.join(calls.changes)}"
