"""The text of a summary of profiled steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelkit import byte_size
from accelkit.text_table import aligned, number

if TYPE_CHECKING:
    from accelkit.runtime.profiling.summary import Summary


def as_text(summary: Summary) -> str:
    """Return a summary as text: tables of phases, operators, copies and fallbacks, then the peak memory and the findings."""
    return "\n".join(_lines(summary))


def _lines(summary: Summary) -> Iterator[str]:
    steps = "1 step" if summary.num_steps == 1 else f"{summary.num_steps} steps"
    yield f"{steps} on {summary.device}, {summary.step_ms:.3f} ms per step"
    yield ""
    step = summary.step_ms or 1.0
    rows: list[tuple[str, ...]] = [(name, f"{ms:.3f}", f"{ms / step:.0%}") for name, ms in summary.phases.items()]
    if summary.device_ms is not None:
        rows.append(("device busy", f"{summary.device_ms:.3f}", f"{summary.device_ms / step:.0%}"))
    yield from aligned([("PHASE", "MS PER STEP", "SHARE"), *rows], has_numbers=True)
    if summary.operators:
        yield ""
        rows = [(each.name, number(each.calls), f"{each.host_ms:.3f}", f"{each.device_ms:.3f}") for each in summary.operators]
        yield from aligned([("OPERATOR", "CALLS", "HOST MS", "DEVICE MS"), *rows], has_numbers=True)
    if summary.copies:
        yield ""
        rows = [
            (f"{each.source} to {each.target}", each.phase, number(each.count), f"{each.bytes / 1e6:.3f}", f"{each.ms:.3f}")
            for each in summary.copies
        ]
        yield from aligned([("COPIES", "PHASE", "COUNT", "MB", "MS"), *rows], has_numbers=True)
    if summary.fallbacks:
        yield ""
        rows = [(each.operator, number(each.calls), f"{each.ms:.3f}") for each in summary.fallbacks]
        yield from aligned([("RUNS ON THE CPU", "CALLS", "MS"), *rows], has_numbers=True)
    if summary.peak_bytes is not None:
        yield ""
        yield f"memory: at most {byte_size.as_text(summary.peak_bytes)}, in {summary.peak_at}"
    yield ""
    yield from summary.findings or ["nothing stands out"]
