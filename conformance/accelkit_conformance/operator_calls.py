"""Find the operators that a training step calls on a device, and determine which of them the device leaves to the CPU.

torch's profiler records the calls and the devices of their tensors. An operator counts as left to the CPU if it copies tensors between the
device and the host in order to compute, as ``at::native::cpu_fallback`` does. A fallback to the CPU without such copies is not detected.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from accelkit import PluginRecord
from accelkit_conformance import subprocess_checks

if TYPE_CHECKING:
    import torch

MODELS = ("transformer", "cnn", "diffusion", "rnn", "gnn")
_COPIES = {f"aten::{name}" for name in ("copy_", "_copy_from", "_copy_from_and_resize")}
_MOVES = _COPIES | {f"aten::{name}" for name in ("to", "_to_copy", "_to_cpu", "cpu", "clone", "contiguous", "lift_fresh")}
_READS = {f"aten::{name}" for name in ("item", "_local_scalar_dense", "is_nonzero", "equal")}
_NEW = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "resize_", "set_", "resolve_conj", "resolve_neg")}


@dataclasses.dataclass(slots=True)
class Operator:
    """The calls to one operator in one training step of each model.

    Attributes:
        name: The name and the overload of the operator, for example ``aten::sum.dim_IntList``.
        is_on_cpu: Whether at least one of the calls fell back to the CPU.
        calls: The number of calls in the training step of each model, keyed by the name of the model.
        seconds: The time in seconds that the host spent in these calls. This includes the time in which a call that falls back to the CPU
            waits until the device has finished its queued work.
    """

    name: str
    is_on_cpu: bool
    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def num_calls(self) -> int:
        return sum(self.calls.values())


@dataclasses.dataclass(frozen=True, slots=True)
class ModelRun:
    """One training step of a model.

    Attributes:
        model: The name of the model.
        seconds: The time that the step took under the profiler, in seconds.
        error: Why the model could not be trained; empty if it was trained.
    """

    model: str
    seconds: float
    error: str


def measure(record: PluginRecord, model: str, timeout: float) -> tuple[ModelRun, list[Operator]]:
    """Train a model for two steps in a new process, and return the ModelRun of the second step and the operators that this step calls.

    The new process initialises the driver. If the model cannot be trained within the time limit, ``error`` of the ModelRun says why, and
    the list of operators is empty.

    Args:
        record: The accelerator.
        model: The name of the model, from ``MODELS``.
        timeout: The time limit in seconds.
    """
    request = subprocess_checks.about(record) | {"model": model}
    try:
        found = subprocess_checks.ask(__name__, request, timeout, {"KINETO_LOG_LEVEL": "5"})
    except AssertionError as error:
        return ModelRun(model, 0.0, str(error)), []
    operators = [Operator(one["name"], one["is_on_cpu"], {model: one["calls"]}, one["seconds"]) for one in found["operators"]]
    return ModelRun(model, found["seconds"], found["error"]), operators


def ranked(operators: Iterable[Operator]) -> list[Operator]:
    """Add up the calls to each operator in all models, and return one item per operator, sorted.

    Operators that fell back to the CPU come before all other operators. In each of the two groups, the operator with the most calls comes
    first.
    """
    found: dict[str, Operator] = {}
    for one in operators:
        total = found.setdefault(one.name, Operator(one.name, one.is_on_cpu))
        total.is_on_cpu |= one.is_on_cpu
        total.seconds += one.seconds
        for model, calls in one.calls.items():
            total.calls[model] = total.calls.get(model, 0) + calls
    return sorted(found.values(), key=lambda one: (not one.is_on_cpu, -one.num_calls, -one.seconds, one.name))


def calls_in(roots: Sequence[Any], device_type: str) -> Iterator[tuple[str, bool, float]]:
    """Yield the recorded calls that compute on tensors of the device.

    Each item consists of the name of the operator, whether the call fell back to the CPU, and the duration of the call in seconds.

    Views, uninitialised new tensors, copies, and reads such as ``item`` are left out. If an operator calls other operators that compute on
    the device, only the calls to those operators are yielded.

    Args:
        roots: The roots of the event tree of the profiler.
        device_type: The type of the device.
    """
    for event in roots:
        if not _is_operator(event):
            yield from calls_in(event.children, device_type)
            continue
        inner = list(calls_in(event.children, device_type))
        if inner:
            yield from inner
        elif event.name in _MOVES | _NEW | _READS:
            continue
        elif any(_crosses(one, device_type) for one in event.children):
            yield _full_name(event), True, event.duration_time_ns / 1e9
        elif device_type in _devices(event) and _computes(event.name, event.overload_name):
            yield _full_name(event), False, event.duration_time_ns / 1e9


def _crosses(event: Any, device_type: str) -> bool:
    """Return whether a recorded call, or a call that it makes, copies a tensor between the host and the device."""
    if device_type == "cpu" or event.name in _READS:
        return False
    if event.name in _COPIES and {"cpu", device_type} <= _devices(event):
        return True
    return any(_crosses(one, device_type) for one in event.children)


def _is_operator(event: Any) -> bool:
    return str(event.name).startswith("aten::")


def _full_name(event: Any) -> str:
    return f"{event.name}.{event.overload_name}" if event.overload_name else str(event.name)


def _devices(event: Any) -> set[str]:
    """Return the device types of a recorded call's input tensors."""
    found: set[str] = set()
    for value in event.extra_fields.inputs:
        for one in value if isinstance(value, list) else [value]:
            if (device := getattr(one, "device", None)) is not None:
                found.add(device.type)
    return found


@functools.cache
def _computes(name: str, overload: str) -> bool:
    """Return whether an operator computes values itself.

    The result is False if the operator returns a view, or is composite (implemented with other operators).
    """
    import torch

    schema: Any = torch._C._get_schema(name, overload)
    alias = schema.arguments[0].alias_info if schema.arguments else None
    full = f"{name}.{overload}" if overload else name
    return (alias is None or alias.is_write) and not torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")


def _train(record: PluginRecord, model_name: str) -> dict[str, Any]:
    """In the child process, train a model for two steps, and return the second step's operator calls and its duration."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from accelkit.discovery import loading
    from accelkit_conformance.oracle.typical_models import MODELS as BUILDERS
    from accelkit_conformance.oracle.typical_models import OPTIMIZERS
    from accelkit_conformance.subject import Subject

    accelerator = loading.instantiate(loading.load_class(record), record)
    accelerator.load()
    subject = Subject(record, type(accelerator))
    subject.use(accelerator)
    torch.manual_seed(0)
    built, batch = BUILDERS[model_name]()
    model = built.to(subject.device)
    batch = tuple(one.to(subject.device) for one in batch)
    optimizer = OPTIMIZERS[model_name](model)

    def step() -> None:
        optimizer.zero_grad()
        model(*batch).backward()
        optimizer.step()
        accelerator.synchronize(subject.device)

    step()
    settings = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=settings) as profiled:
        step()
    return _summary(profiled, subject.device)


def _summary(profiled: Any, device: torch.device) -> dict[str, Any]:
    roots = profiled.profiler.kineto_results.experimental_event_tree()
    operators: dict[str, dict[str, Any]] = {}
    for name, is_on_cpu, seconds in calls_in(roots, device.type):
        one = operators.setdefault(name, {"name": name, "is_on_cpu": False, "calls": 0, "seconds": 0.0})
        one["is_on_cpu"] |= is_on_cpu
        one["calls"] += 1
        one["seconds"] += seconds
    start, end = min(one.start_time_ns for one in roots), max(one.end_time_ns for one in roots)
    return {"operators": list(operators.values()), "seconds": (end - start) / 1e9, "error": ""}


def main() -> None:
    """Handle a request from ``measure``, in the child process."""
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    try:
        found = _train(PluginRecord(**request["record"]), request["model"])
    except Exception as error:  # a device may raise anything
        found = {"operators": [], "seconds": 0.0, "error": f"{type(error).__name__}: {error}"}
    subprocess_checks.answer(found)


if __name__ == "__main__":
    main()
