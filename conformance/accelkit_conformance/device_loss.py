"""Detection of a device that becomes unusable during a run, for example a remote device whose server has stopped.

After many failures in a row, the suite checks whether the device still works.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from accelkit import PluginRecord
from accelkit.discovery import probing, verdict_cache
from accelkit_conformance import checks
from accelkit_conformance.results import RERUN, Result

_FAILURES = 8
_TIMEOUT_COUNTS = 4  # one timeout counts as this many failures, because each timeout takes a long time


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """Record of a device that became unusable during a run.

    Attributes:
        last_passed: The id of the last test that passed on the device; empty if none did.
        failed: The ids of the tests that have failed since ``last_passed``.
        status: The current status of the device: ``absent`` or ``broken``.
        reason, hint: Why the device cannot be used, and what would help.
    """

    last_passed: str
    failed: tuple[str, ...]
    status: str
    reason: str
    hint: str

    def __str__(self) -> str:
        after = f"the last test that passed is {self.last_passed}" if self.last_passed else "no test has passed"
        first = f", and {self.failed[0]} was the first to fail" if self.failed else ""
        return f"{after}{first}; {self.reason}"


class LossDetector:
    """Detects that a device has become unusable.

    Args:
        records: The records of the accelerators on which the tests run.
    """

    def __init__(self, records: Sequence[PluginRecord]) -> None:
        self._records = records
        self._last_passed, self._failed = "", list[str]()
        self._weight, self._limit = 0, _FAILURES

    def loss_after(self, result: Result) -> Loss | None:
        """Record a result. Return a ``Loss`` if, after many failures, a device can no longer be used, and None otherwise.

        The devices are probed (``find_loss``) only when the number of failures since the last passed test reaches a limit. A timeout counts
        as several failures. The limit doubles each time the devices are probed, and returns to its initial value when a test passes.
        Results of checks that need no hardware are ignored.
        """
        if not checks.find(result.id)[0].needs_hardware:
            return None
        # On a lost device, the test of an undeclared capability ends as unsupported, with an error.
        if result.kind in RERUN or (result.kind == "unsupported" and result.error):
            self._failed.append(result.id)
            self._weight += _TIMEOUT_COUNTS if result.kind == "timeout" else 1
        elif result.kind in ("pass", "flaky"):
            self._last_passed, self._failed, self._weight, self._limit = result.id, [], 0, _FAILURES
        if self._weight < self._limit:
            return None
        self._limit *= 2
        return self.find_loss()

    def find_loss(self) -> Loss | None:
        """Find out in a child process whether each device can be used. Return a ``Loss`` if a device cannot be used, and None otherwise."""
        for record, verdict in probing.ask_all(self._records, is_trial=True).items():
            verdict_cache.remember(record, verdict)
            if verdict.status != "usable":
                return Loss(self._last_passed, tuple(self._failed), verdict.status, verdict.reason, verdict.hint)
        return None
