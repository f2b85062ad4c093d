"""Conversion of the elements of ``Runtime(trackers=[...])`` to trackers.

An element is a function, a tracker object, or the name of a tracker. A tracker object may come from accelkit, Accelerate or Lightning.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from accelkit import tracking
from accelkit.errors import UsageError
from accelkit.tracking.accelerate_tracker import AccelerateTracker
from accelkit.tracking.callables import CallableTracker
from accelkit.tracking.lightning_logger import LightningLogger
from accelkit.tracking.tracker import Tracker


def trackers_of(given: Iterable[Any]) -> tuple[list[Tracker], tuple[Any, ...]]:
    """Return a tracker for each element of ``given``, and the objects that the user gets from ``rt.trackers``.

    Raises:
        UsageError: If ``given`` is a string or is not iterable, or if an element is not a function, a tracker object or the name of a
            tracker.
        UnavailableError: If a package that a tracker needs is not installed.
    """
    if isinstance(given, str):
        raise UsageError(f"trackers={given!r} is a string", why="a list is expected", hint=f"write trackers=[{given!r}]")
    if not isinstance(given, Iterable):
        kind = type(given).__name__
        raise UsageError(
            f"trackers={given!r:.80} is not a list", why=f"a list is expected, not {kind}", hint=f"write trackers=[{kind}(...)]"
        )
    objects = [_named(one) if isinstance(one, str) else one for one in given]
    trackers = [_tracker(one) for one in objects]
    for tracker in trackers:
        tracker.check()
    return trackers, tuple(objects)


def _named(name: str) -> Tracker:
    if name not in tracking.CLASSES:
        near = difflib.get_close_matches(name, tracking.CLASSES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "a function f(values, step) or a subclass of accelkit.tracking.Tracker works too"
        raise UsageError(f"there is no tracker named {name!r}", why=f"the names are {', '.join(tracking.CLASSES)}", hint=hint)
    tracker: Tracker = getattr(tracking, tracking.CLASSES[name])()
    return tracker


def _tracker(given: Any) -> Tracker:
    if isinstance(given, Tracker):
        return given
    if isinstance(given, type):
        name = given.__qualname__
        raise UsageError(f"trackers=[{name}] contains a class", why="an instance is expected", hint=f"write trackers=[{name}(...)]")
    if _has(given, "log_metrics", "log_hyperparams", "finalize"):
        return LightningLogger(given)
    if _has(given, "log", "store_init_configuration", "finish"):
        return AccelerateTracker(given)
    if callable(given):
        return CallableTracker(given)
    raise UsageError(
        f"trackers=[{given!r:.80}] is not a tracker",
        why=f"its type is {type(given).__name__}; expected a name, a function, or an accelkit, Accelerate or Lightning tracker",
        hint="pass a name such as 'csv', or a function f(values, step)",
    )


def _has(given: Any, *methods: str) -> bool:
    return all(callable(getattr(given, method, None)) for method in methods)
