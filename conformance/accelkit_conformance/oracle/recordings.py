"""Functions that record the work of a device with torch.profiler and read the recordings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.autograd import DeviceType
    from torch.autograd.profiler_util import FunctionEvent
    from torch.profiler import profile

    from accelkit_conformance.subject import Subject


def record(subject: Subject, work: Callable[[], object], **options: bool) -> profile:
    """Call ``work`` and wait for the device, while torch.profiler records the host and the device.

    Args:
        subject: The plugin under test, with its device.
        work: The function to record.
        options: Arguments of ``torch.profiler.profile``.

    Returns:
        The profiler, with the recording.
    """
    from torch.profiler import profile

    from accelkit.runtime.profiling.profiler import activities

    subject.accelerator.synchronize(subject.device)
    with profile(activities=activities(subject.device_type), **options) as profiler:
        work()
        subject.accelerator.synchronize(subject.device)
    return profiler


def device_type(subject: Subject) -> DeviceType:
    """Return the device type that events of the device must have, such as ``CUDA`` or ``PrivateUse1``."""
    from torch.autograd import DeviceType

    return next((one for name, one in DeviceType.__members__.items() if name.lower() == subject.device_type), DeviceType.PrivateUse1)


def device_work(profiler: profile) -> list[FunctionEvent]:
    """Return the kernels and copies that were recorded on devices other than the CPU."""
    return [event for event in profiler.events() or () if event.device_type.name != "CPU" and not event.is_user_annotation]


def device_microseconds(profiler: profile, operator: str) -> float:
    """Return the device time, in microseconds, that was recorded for all calls to an operator such as ``aten::mm``.

    The time of other operators that this operator calls is left out.
    """
    return sum(average.self_device_time_total for average in profiler.key_averages() if average.key == operator)


def allocations(subject: Subject, profiler: profile, at_least: int = 1) -> list[int]:
    """Return the sizes in bytes of the recorded allocations and deallocations, ordered by time. The sizes of deallocations are negative.

    If the device under test is not the CPU, the result covers all devices other than the CPU.

    Args:
        subject: The plugin under test, with its device.
        profiler: The profiler, with a recording of memory.
        at_least: Sizes whose absolute value is smaller than this number are left out.
    """
    events = profiler.profiler.kineto_results.events() if profiler.profiler and profiler.profiler.kineto_results else []
    is_cpu = subject.device.type == "cpu"
    found = [event for event in events if event.name() == "[memory]" and (event.device_type().name == "CPU") == is_cpu]
    return [event.nbytes() for event in sorted(found, key=lambda event: event.start_ns()) if abs(event.nbytes()) >= at_least]


def check_totals(subject: Subject) -> None:
    """Check that ``key_averages`` of a recording misses no call, and that its device times add up to the time of all kernels and copies.

    Raises:
        AssertionError: If too few calls or no kernels were recorded, if the times do not add up, or if a matmul has no device time.
    """
    import torch  # not above: areas/profiling.py imports this module, and listing the checks must not import torch

    x = torch.ones(256, 256, device=subject.device, requires_grad=True)

    def work() -> None:
        y = x
        for _ in range(3):
            y = torch.mm(y, x)
        y.sum().backward()  # type: ignore[no-untyped-call]

    work()
    profiler = record(subject, work)
    averages = profiler.key_averages()
    calls = {average.key: average.count for average in averages if average.device_type.name == "CPU"}
    for operator, number in {"aten::mm": 9, "aten::sum": 1}.items():  # 3 matmuls, and the 6 of their backward pass
        found = calls.get(operator, 0)
        assert found >= number, f"{operator} was called {number} times, but only {found} calls were recorded"
    total = sum(average.self_device_time_total for average in averages if average.device_type.name == "CPU")
    kernels = sum(event.time_range.elapsed_us() for event in device_work(profiler))
    assert kernels > 0, "no kernel was recorded"
    assert abs(total - kernels) <= 0.05 * kernels + 1, (
        f"operators have {total:.0f} us of the device's time, but the kernels {kernels:.0f} us"
    )
    times = [event.device_time_total for event in profiler.events() or () if event.name == "aten::mm"]
    assert min(times) > 0, f"the matmuls of a forward and a backward pass have {times} us of the device's time"
