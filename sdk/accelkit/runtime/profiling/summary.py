"""The summary of profiled steps: how long each part of a step takes, and what stands out.

The summary is made from the events of torch.profiler. torch itself records the iterators of a DataLoader, the nodes of the backward pass
and the steps of optimizers. ``Profiler`` adds a range for the forward pass of each prepared module.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from accelkit.runtime.profiling.findings import findings
from accelkit.runtime.profiling.intervals import Interval, clip, subtract, total, union

FORWARD = "accelkit::forward"
# A moment that is in several of these phases counts toward the first of them.
PHASES = ("data", "forward", "backward", "optimizer", "copies", "collectives", "other")
_BEGINNINGS = {
    "data": ("enumerate(DataLoader)",),
    "forward": (FORWARD,),
    "backward": ("autograd::engine::evaluate_function",),
    "optimizer": ("Optimizer.step#", "Optimizer.zero_grad#"),
    "collectives": ("c10d::", "_c10d_functional::"),
}
_COLLECTIVE_OF_BACKEND = re.compile(r"\w+:(all_|reduce|broadcast|gather|scatter|barrier|send|recv)")
_MOVERS = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::_to_cpu")
_NS_PER_MS = 1e6
_NUM_OPERATORS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """An operator that was called in the profiled steps.

    Attributes:
        name: The name of the operator.
        calls: The number of calls per step.
        host_ms, device_ms: The time in ms per step on the host and on the device, without the time of operators that this operator calls.
    """

    name: str
    calls: float
    host_ms: float
    device_ms: float


@dataclasses.dataclass(frozen=True, slots=True)
class Copies:
    """The copies from one type of device to another in one phase of a step.

    Attributes:
        source, target: The device types.
        phase: ``data``, ``forward``, ``backward``, ``optimizer`` or ``collectives`` if the copies are part of that phase, else ``other``.
        count, bytes, ms: The number of copies, their total size in bytes and their total time on the host in ms. All are averages per step.
    """

    source: str
    target: str
    phase: str
    count: float
    bytes: float
    ms: float


@dataclasses.dataclass(frozen=True, slots=True)
class Fallback:
    """An operator that runs on the CPU because the device does not implement it.

    Attributes:
        operator: The name of the operator.
        calls: The average number of calls per step.
        ms: The average time per step that these calls take on the host, in ms.
    """

    operator: str
    calls: float
    ms: float


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """The summary of the profiled steps. ``print(summary)`` shows it as tables; ``dataclasses.asdict(summary)`` returns the same numbers.

    Attributes:
        device: The device.
        num_steps: The number of profiled steps.
        step_ms: The average time of a step in ms.
        phases: The average time that each phase takes in a step, in ms. The phases are ``data``, ``forward``, ``backward``, ``optimizer``,
            ``copies``, ``collectives`` and ``other``. The sum is ``step_ms``. The times are measured on the host: the
            device may still be working on an earlier phase.
        device_ms: The average time per step, in ms, for which the device was working. None if torch.profiler does not record this device.
        operators: The eight operators that take the most time on the device, sorted by that time and then by the time on the host.
        copies: The copies between devices of different types.
        fallbacks: The operators that ran on the CPU because the device does not implement them.
        peak_bytes: The highest number of bytes allocated on the device during the steps. None if the device's allocator reports nothing to
            torch.profiler.
        peak_at: The phase and, if any, the operator in which the peak was reached, for example ``backward, aten::mm``. None if
            ``peak_bytes`` is None.
        findings: What stands out in these numbers, in some cases with advice. Empty if nothing stands out.
    """

    device: str
    num_steps: int
    step_ms: float
    phases: Mapping[str, float]
    device_ms: float | None
    operators: Sequence[Operator]
    copies: Sequence[Copies]
    fallbacks: Sequence[Fallback]
    peak_bytes: int | None
    peak_at: str | None
    findings: Sequence[str]

    def __str__(self) -> str:
        from accelkit.runtime.profiling.tables import as_text

        return as_text(self)


def summarize(profiler: torch.profiler.profile, device: torch.device, *, has_partial_step: bool = False) -> Summary:
    """Return the summary of a profiler that has recorded shapes and memory.

    Except for the backward pass and collectives, phases are measured only in the thread that called the profiler's ``step``.

    Args:
        profiler: The profiler, after its last recorded step.
        device: The device whose work and memory are of interest.
        has_partial_step: Whether the last recorded step is incomplete, because the program left the profiler's context during it. If other
            steps were recorded, this step does not count.
    """
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    events = list(_walk(results.experimental_event_tree()))
    steps = sorted((event for event in events if event.name.startswith("ProfilerStep")), key=lambda event: event.start_time_ns)
    if has_partial_step and len(steps) > 1:
        steps = steps[:-1]
    spans = [_span(step) for step in steps]
    inside = [event for event in events if any(start <= event.start_time_ns < end for start, end in spans)]
    kernels = [event for event in results.events() if event.device_type().name != "CPU"]
    own = [event for event in kernels if device.index in (None, event.device_index())]
    busy = [(event.start_ns(), event.start_ns() + event.duration_ns()) for event in own]
    thread = steps[0].start_tid if steps else 0
    num_steps = max(len(steps), 1)

    def ms_per_step(intervals: Iterable[Interval]) -> float:
        return total(intervals) / _NS_PER_MS / num_steps

    peak_bytes, peak_at = _peak(inside, device)
    found = Summary(
        device=str(device),
        num_steps=len(steps),
        step_ms=ms_per_step(spans),
        phases={phase: ms_per_step(parts) for phase, parts in _divide(spans, inside, thread).items()},
        device_ms=ms_per_step(clip(union(busy), spans)) if kernels else None,
        operators=_operators(profiler, num_steps),
        copies=_copies(inside, num_steps),
        fallbacks=_fallbacks(inside, num_steps),
        peak_bytes=peak_bytes,
        peak_at=peak_at,
        findings=(),
    )
    return dataclasses.replace(found, findings=tuple(findings(found, ms_per_step(_outside_operators(inside, thread)))))


def _walk(events: Iterable[Any]) -> Iterator[Any]:
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        yield event
        waiting.extend(event.children)


def _span(event: Any) -> Interval:
    return event.start_time_ns, event.end_time_ns


def _phase(name: str) -> str | None:
    found = next((phase for phase, beginnings in _BEGINNINGS.items() if name.startswith(beginnings)), None)
    return "collectives" if found is None and _COLLECTIVE_OF_BACKEND.match(name) else found


def _phase_around(event: Any) -> str:
    """Return the phase of an event: the phase of its outermost ancestor that has one, else its own phase, else ``other``."""
    found = "other"
    while event is not None:
        found = _phase(event.name) or found
        event = event.parent
    return found


def _divide(spans: Sequence[Interval], events: Iterable[Any], thread: int) -> dict[str, list[Interval]]:
    """Divide the time of the steps among the phases, and return the intervals of each phase, keyed by the name of the phase.

    The backward pass and collectives may run in other threads while the loop waits for them; the other phases run in the loop's thread.
    A moment that is in several phases counts toward the first of them in ``PHASES``. A moment that is in no phase counts toward ``other``.
    """
    by_phase: dict[str, list[Interval]] = {phase: [] for phase in PHASES}
    for event in events:
        phase = _phase(event.name) or ("copies" if event.name in _MOVERS else None)
        if phase is not None and (event.start_tid == thread or phase in ("backward", "collectives")):
            by_phase[phase].append(_span(event))
    left, divided = list(spans), {}
    for phase in PHASES[:-1]:
        own = union(by_phase[phase])
        divided[phase] = clip(own, left)
        left = subtract(left, own)
    return divided | {PHASES[-1]: left}


def _operators(profiler: torch.profiler.profile, num_steps: int) -> list[Operator]:
    """Return the ``_NUM_OPERATORS`` operators that take the most time in the first ``num_steps`` steps."""
    # Other events are kernels, whose time is also counted in the operators that launched them.
    recorded: Any = profiler.events()  # type: ignore[no-untyped-call]
    events = [event for event in recorded if event.device_type.name == "CPU"]
    steps = sorted((event.time_range for event in events if event.name.startswith("ProfilerStep")), key=lambda step: step.start)[:num_steps]
    sums: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0, 0])
    for event in events:
        if any(step.start <= event.time_range.start < step.end for step in steps):
            for index, value in enumerate((1, event.self_cpu_time_total, event.self_device_time_total)):
                sums[event.name][index] += value
    found = [
        Operator(name, calls / num_steps, host * 1e-3 / num_steps, at_work * 1e-3 / num_steps)
        for name, (calls, host, at_work) in sums.items()
        if name.partition("::")[0] in ("aten", "c10d") or ("::" not in name and at_work)
    ]
    return sorted(found, key=lambda each: (each.device_ms, each.host_ms), reverse=True)[:_NUM_OPERATORS]


def _tensors(event: Any) -> list[Any]:
    inputs = getattr(event.extra_fields, "inputs", None) or []
    return [each for each in inputs if hasattr(each, "device") and hasattr(each, "sizes")]


def _copies(events: Iterable[Any], num_steps: int) -> list[Copies]:
    sums: dict[tuple[str, str, str], list[float]] = collections.defaultdict(lambda: [0, 0, 0])
    for event in events:
        tensors = _tensors(event) if event.name == "aten::copy_" else []
        if len(tensors) < 2 or tensors[0].device.type == tensors[1].device.type:
            continue
        to, source = tensors[:2]
        size = torch.Size(source.sizes).numel() * source.dtype.itemsize
        for index, value in enumerate((1, size, event.duration_time_ns)):
            sums[source.device.type, to.device.type, _phase_around(event)][index] += value
    found = [Copies(*key, count / num_steps, size / num_steps, ns / _NS_PER_MS / num_steps) for key, (count, size, ns) in sums.items()]
    return sorted(found, key=lambda each: each.ms, reverse=True)


def _fallbacks(events: Iterable[Any], num_steps: int) -> list[Fallback]:
    """Return the operators that ran on the CPU because the device does not implement them, sorted by time in descending order.

    These are the operators that call ``aten::_to_cpu``, with which torch copies the arguments to the CPU.
    """
    calls: dict[str, dict[int, int]] = collections.defaultdict(dict)
    for event in events:
        if event.name == "aten::_to_cpu" and event.parent is not None:
            calls[event.parent.name][event.parent.id] = event.parent.duration_time_ns
    found = [Fallback(name, len(times) / num_steps, sum(times.values()) / _NS_PER_MS / num_steps) for name, times in calls.items()]
    return sorted(found, key=lambda each: each.ms, reverse=True)


def _peak(events: Iterable[Any], device: torch.device) -> tuple[int | None, str | None]:
    allocations = [event for event in events if event.typed[0].name == "Allocation" and _is_same(event.extra_fields.device, device)]
    if not allocations:
        return None, None
    highest = max(allocations, key=lambda event: event.extra_fields.total_allocated)
    operator = highest.parent
    name = "" if operator is None or operator.name.startswith("ProfilerStep") else f", {operator.name}"
    return highest.extra_fields.total_allocated, _phase_around(highest) + name


def _is_same(recorded: torch.device, device: torch.device) -> bool:
    return recorded.type == device.type and (recorded.index == device.index or None in (recorded.index, device.index))


def _outside_operators(events: Sequence[Any], thread: int) -> list[Interval]:
    """Return the parts of forward passes in which the thread with the ID ``thread`` runs only Python code, and no operators."""
    ranges = union(_span(event) for event in events if event.name == FORWARD)
    operators = union(_span(event) for event in events if event.start_tid == thread and event.name.startswith("aten::"))
    return subtract(ranges, operators)
