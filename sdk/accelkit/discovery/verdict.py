"""The verdict on a plugin after a probe or a trial (see the module ``probing``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from accelkit import untrusted_json
from accelkit.errors import shortened
from accelkit.specs.finding import Finding
from accelkit.types import Availability, ProbeStatus

_LENGTHS = {"reason": 2000, "checked": 500, "hint": 2000, "description": 500, "device_type": 100, "traceback": 50_000}


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a probe or a trial of a plugin, or the answer to another question about it (see ``probing``).

    Attributes:
        status, reason, hint: The fields of ``Availability``. The status of a plugin that crashed or hung is ``broken``.
        traceback: The traceback of the plugin's error, or the output of faulthandler if the plugin crashed.
        description: The first line of the class's docstring.
        device_type, is_simulated, device_count, capabilities: Facts about an accelerator. ``device_count`` and ``capabilities`` are known
            only after a trial.
        checks: The results of the plugin's own doctor checks, by name. Known only if the question was ``checks``, or after the trial of
            an accelerator; otherwise empty.
        checked: The ``reason`` that the plugin's own ``check()`` returned in a trial, or a default text if ``check()`` succeeded without
            a reason. "" if ``check()`` was not called or did not succeed, or if the plugin inherits the default ``check()``.
        definitions: The members that the plugin's class defines. Empty unless the question was ``definitions``.
        mistakes: The findings of the static checks. Empty unless the question was ``mistakes``.
        seconds: The duration of the probe or trial in seconds.
        cached_at: The time at which the verdict was cached, in seconds since the epoch. 0 if the verdict is not from the cache.
        machine_state: The digest of the machine's state (see the module ``machine_state``) if ``verdict_cache.probed`` cached the
            verdict on Linux; otherwise "".
        is_of_probe: Whether a cached verdict is only the result of a probe. A probe does not show that the plugin works.
    """

    status: ProbeStatus
    reason: str = ""
    hint: str = ""
    traceback: str = ""
    description: str = ""
    device_type: str = ""
    is_simulated: bool = False
    device_count: int | None = None
    capabilities: Mapping[str, str] = dataclasses.field(default_factory=dict)
    checks: Mapping[str, Availability] = dataclasses.field(default_factory=dict)
    checked: str = ""
    definitions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mistakes: tuple[Finding, ...] = ()
    seconds: float = 0.0
    cached_at: float = 0.0
    machine_state: str = ""
    is_of_probe: bool = False

    def as_dict(self) -> dict[str, Any]:
        hidden = ("checked", "definitions", "mistakes", "machine_state", "is_of_probe")
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in hidden}

    @classmethod
    def from_dict(cls, fields: object) -> Verdict:
        """Create a verdict from the result of ``as_dict`` or from the report of a child process. Overlong texts are truncated.

        Raises:
            ValueError: If a field does not have the declared type.
        """
        verdict = untrusted_json.decode(cls, fields)
        given = ((name, getattr(verdict, name), length) for name, length in _LENGTHS.items())
        texts: dict[str, Any] = {name: shortened(text, length) for name, text, length in given if len(text) > length}
        checks = {name: _cut(check) for name, check in verdict.checks.items()}
        mistakes = tuple(Finding(*(shortened(text, _LENGTHS["reason"]) for text in dataclasses.astuple(one))) for one in verdict.mistakes)
        return dataclasses.replace(verdict, **texts, checks=checks, mistakes=mistakes) if texts or checks or mistakes else verdict


def _cut(check: Availability) -> Availability:
    return dataclasses.replace(check, reason=shortened(check.reason, _LENGTHS["reason"]), hint=shortened(check.hint, _LENGTHS["hint"]))
