"""Plausible values of the variables that a cluster environment reads, for a plugin that ships no variables recorded in a real job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from accelkit.cluster.detection import SETTINGS
from accelkit_conformance.oracle.cluster_reading import Answers, environment_for, process_environment, read

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_MOST_VARIABLES = 50


class AnyVariable(dict[str, str]):
    """A mapping that has a value for every environment variable: 0 if its name suggests a rank, and 1 otherwise."""

    def __missing__(self, name: str) -> str:
        return "0" if "RANK" in name or "PROC" in name or name.endswith("ID") else "1"

    def __contains__(self, name: object) -> bool:
        return True

    def get(self, name: str, default: object = None) -> str:  # type: ignore[override]
        return self[name]


def guessed_answers(subject: Subject) -> Answers:
    """Return the values that the plugin's properties have when every variable that the plugin reads is set.

    The plugin's attribute ``environ`` has a value for every variable. If the plugin reads ``os.environ`` instead and raises a KeyError, the
    missing variable is added to ``os.environ``, and the property is read again.

    Raises:
        AssertionError: If a property raises an error that is neither an AccelkitError nor such a KeyError, or if it reads more than 50
            variables from ``os.environ``.
    """
    return {name: _guessed(subject, name) for name in SETTINGS}


def _guessed(subject: Subject, name: str) -> object:
    values = AnyVariable()
    added: dict[str, str] = {}
    for _ in range(_MOST_VARIABLES):
        with process_environment(added):
            try:
                return read(environment_for(subject, values), name)
            except AssertionError as error:
                cause = error.__cause__
                missing = cause.args[0] if isinstance(cause, KeyError) and cause.args else None
                if not isinstance(missing, str) or missing in os.environ:
                    raise
                added[missing] = values[missing]
    raise AssertionError(f"{name} reads more than {_MOST_VARIABLES} variables of os.environ")
