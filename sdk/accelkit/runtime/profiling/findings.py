"""What stands out in a summary of profiled steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelkit.text_table import number

if TYPE_CHECKING:
    from accelkit.runtime.profiling.summary import Summary

_NUM_NAMES = 3
_NOTABLE = 0.15
_NOTABLE_HOST = 0.4


def findings(summary: Summary, forward_in_python: float) -> Iterator[str]:
    """Yield a text for each finding: what stands out in the summary and, in some cases, advice.

    Args:
        summary: The summary without its findings.
        forward_in_python: The time in ms per step that forward passes spend in Python code, outside operators.
    """
    step, phases = summary.step_ms or 1.0, summary.phases

    def takes(ms: float) -> str:
        return f"takes {number(ms)} ms per step ({ms / step:.0%})"

    if phases["data"] >= _NOTABLE * step:
        yield f"data: waiting for the loader {takes(phases['data'])}. Give the DataLoader more workers, or make its dataset faster"
    if phases["copies"] >= _NOTABLE * step:
        pairs = {f"from {each.source} to {each.target}" for each in summary.copies if each.phase == "other"}
        what = " and ".join(sorted(pairs)) or "to other dtypes"
        yield f"copies: copying {what} {takes(phases['copies'])}. Pass pin_memory=True to the DataLoader, or copy less"
    fallbacks = sum(each.ms for each in summary.fallbacks)
    if summary.fallbacks and fallbacks >= _NOTABLE / 3 * step:
        names = ", ".join(each.operator for each in summary.fallbacks[:_NUM_NAMES])
        those = "it" if len(summary.fallbacks) == 1 else "them"
        yield f"fallback: {summary.device} does not implement {names}, so the CPU runs {those} instead. This {takes(fallbacks)}"
    for each in summary.copies:
        if each.phase in ("forward", "backward", "optimizer") and each.ms >= _NOTABLE / 3 * step and not summary.fallbacks:
            yield f"copies: copying from {each.source} to {each.target} in the {each.phase} phase {takes(each.ms)}"
    if forward_in_python >= _NOTABLE_HOST * step:
        yield f"forward: Python code between the operators {takes(forward_in_python)}. torch.compile or larger batches may help"
    if phases["collectives"] >= _NOTABLE * step:
        yield f"collectives: waiting for other processes {takes(phases['collectives'])}"
    if phases["other"] >= _NOTABLE_HOST * step:
        yield f"other: loop code outside all phases {takes(phases['other'])}"
    if summary.device_ms is not None and summary.device_ms <= _NOTABLE_HOST * step:
        yield f"idle: {summary.device} is busy for only {summary.device_ms / step:.0%} of the time"
