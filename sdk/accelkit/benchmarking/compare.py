"""Comparison of two reports of ``accelkit bench``. This module does not import torch."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from accelkit import untrusted_json
from accelkit.benchmarking.report import SCHEMA, Report, Result
from accelkit.errors import UsageError

Verdict = Literal["slower", "faster", "same", "lost", "new"]
_SIGNIFICANT = 0.05
_SAME = ("name", "device", "device_name", "processor", "threads", "torch", "is_quick")


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """The change of one measurement between two reports.

    Attributes:
        name: The name of the measurement.
        unit: The unit of the measurement.
        old: The median in the old report, or None if that report has no median.
        new: The median in the new report, or None if that report has no median.
        speed: The new speed divided by the old speed, or ``1 + (new - old) / 100`` if the unit is percent. None if a median is missing or
            the quotient is infinite.
        p: The p-value of the difference between the samples of the reports, corrected for the number of measurements. None if a median is
            missing.
        verdict: ``lost`` if only the old report has a median, and ``new`` if only the new report has one. If both have one, the verdict is
            ``slower`` or ``faster`` if ``p`` is less than 0.05 and the speed has changed by more than the threshold. Otherwise, the verdict
            is ``same``.
    """

    name: str
    unit: str
    old: float | None
    new: float | None
    speed: float | None
    p: float | None
    verdict: Verdict


def read(path: Path) -> Report:
    """Read a report that ``accelkit bench --json`` wrote.

    Raises:
        UsageError: If the file cannot be read or is not such a report.
    """
    try:
        fields = untrusted_json.parse(path.read_bytes())
        if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        return untrusted_json.decode(Report, fields)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a report of accelkit bench", why=str(error), hint="write one with --json PATH") from error


def differences(old: Report, new: Report) -> dict[str, dict[str, object]]:
    """Return the differences in machine, software and settings that make two reports hard to compare.

    For each field that differs, such as ``torch``, the result contains the ``old`` value and the ``new`` value. A field that is empty in
    one of the reports is left out. For example, reports from older versions of accelkit have no ``device_name``.
    """
    pairs = {name: {"old": getattr(old, name), "new": getattr(new, name)} for name in _SAME}
    return {name: pair for name, pair in pairs.items() if pair["old"] != pair["new"] and "" not in pair.values()}


def compare(old: Report, new: Report, threshold: float) -> list[Change]:
    """Return the change of each measurement that has samples from the device in at least one of the reports.

    Args:
        old: The old report.
        new: The new report.
        threshold: A fraction less than 1, such as 0.05 for 5 %. The verdict can be ``slower`` only if the new speed is less than ``1 -
            threshold`` times the old speed, and ``faster`` only if the old speed is less than ``1 - threshold`` times the new speed.
    """
    before, after = ({result.name: result for result in report.results if result.device} for report in (old, new))
    shared = [name for name in before if name in after]
    p_values = dict(zip(shared, holm([_p(before[name], after[name]) for name in shared]), strict=True))
    names = [*before, *(name for name in after if name not in before)]
    return [_change(before.get(name), after.get(name), p_values.get(name), threshold) for name in names]


def _p(old: Result, new: Result) -> float:
    assert old.device is not None
    assert new.device is not None
    return mann_whitney(old.device.values, new.device.values)


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value of the Mann-Whitney U test (1947), by the normal approximation with continuity correction.

    A value of ``a`` that equals a value of ``b`` adds 1/2 to U. The variance is not corrected for ties, so ties make p too large.
    """
    u = sum((x > y) + (x == y) / 2 for x in a for y in b)
    mean, deviation = len(a) * len(b) / 2, math.sqrt(len(a) * len(b) * (len(a) + len(b) + 1) / 12)
    z = max(0.0, abs(u - mean) - 0.5) / deviation if deviation else 0.0
    return 2 * (1 - statistics.NormalDist().cdf(z))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values, corrected for multiple comparisons by the method of Holm (1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = largest
    return corrected


def _change(old: Result | None, new: Result | None, p: float | None, threshold: float) -> Change:
    before, after = (None if one is None or one.device is None else one.device.median for one in (old, new))
    either = old or new
    assert either is not None
    if before is None or after is None:
        return Change(either.name, either.unit, before, after, None, None, "lost" if after is None else "new")
    speed = _speed(either, before, after)
    verdict: Verdict = "same"
    if p is not None and p < _SIGNIFICANT and not 1 - threshold <= speed <= 1 / (1 - threshold):
        verdict = "slower" if speed < 1 else "faster"
    return Change(either.name, either.unit, before, after, speed if math.isfinite(speed) else None, p, verdict)


def _speed(result: Result, before: float, after: float) -> float:
    if result.unit == "%":
        return 1 + (after - before) / 100
    old, new = (before, after) if result.is_higher_better else (after, before)
    return new / old if old else math.inf
