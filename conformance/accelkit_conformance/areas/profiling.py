"""torch.profiler records the kernels of the device with their times and operators. It also records the memory of the device. Recording
changes no result."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from accelkit_conformance.checks import check
from accelkit_conformance.oracle.recordings import allocations, device_microseconds, device_work, record

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject

_BYTES = 8 << 20
_LEAST_SECONDS = 0.01
_LARGEST = 8192
_RECORDINGS = 3


def _long_matmul(subject: Subject) -> Callable[[], float]:
    """Return a function that runs a matmul, waits until the device has finished it, and returns the elapsed time in seconds.

    The matrices are square, with 256 rows at first. The number of rows is doubled until the matmul takes at least 10 ms or there are
    8192 rows.
    """
    import torch

    size = 256
    x = torch.ones(size, size, device=subject.device)

    def matmul() -> float:
        start = time.perf_counter()
        torch.mm(x, x)
        subject.accelerator.synchronize(subject.device)
        return time.perf_counter() - start

    matmul()
    while min(matmul(), matmul()) < _LEAST_SECONDS and size < _LARGEST:
        size *= 2
        x = torch.ones(size, size, device=subject.device)
        matmul()
    return matmul


def _three_matmuls(subject: Subject) -> Callable[[], None]:
    """Return a function that runs three matmuls of small matrices, without waiting for the device."""
    import torch

    x = torch.ones(64, 64, device=subject.device)

    def work() -> None:
        for _ in range(3):
            torch.mm(x, x)

    return work


@check("training", requires=["profiler"])
def kernels_have_the_time_that_they_take(subject: Subject) -> None:
    """The profiler records the kernels of a matmul. The matrices are enlarged until the matmul takes 10 ms or the matrices have 8192 rows.
    In total, the kernels take between a third and 105 % of the elapsed time, which is measured from the call until the device has finished.
    There are three recordings, and the recording with the largest ratio of kernel time to elapsed time counts."""
    matmul = _long_matmul(subject)
    found = []
    for _ in range(_RECORDINGS):
        seconds: list[float] = []
        kernels = device_work(record(subject, lambda seconds=seconds: seconds.append(matmul())))
        assert kernels, "no kernel of the matmul was recorded"
        found.append((sum(event.time_range.elapsed_us() for event in kernels) * 1e-6, seconds[0], len(kernels)))
    recorded, taken, number = max(found, key=lambda times: times[0] / times[1])
    assert taken / 3 <= recorded <= taken * 1.05, (
        f"a matmul took {taken * 1e3:.3g} ms, but its {number} recorded kernels take {recorded * 1e3:.3g} ms"
    )


@check("training", requires=["profiler"])
def kernels_start_after_their_call(subject: Subject) -> None:
    """No kernel of a matmul starts more than 1 ms before the matmul is called, and no kernel ends more than 1 ms after the device has been
    synchronized. Three recordings are checked, because a busy host can hide an error of a few milliseconds in a single recording."""
    import torch

    matmul = _long_matmul(subject)

    def work() -> None:
        with torch.profiler.record_function("until the device has finished"):
            matmul()

    for _ in range(_RECORDINGS):
        profiler = record(subject, work)
        ranges = [event for event in profiler.events() or () if event.name == "until the device has finished"]
        (host,) = [event for event in ranges if event.device_type.name == "CPU"]
        kernels = device_work(profiler)
        assert kernels, "no kernel of the matmul was recorded"
        start, end = (min(event.time_range.start for event in kernels), max(event.time_range.end for event in kernels))
        assert start >= host.time_range.start - 1000, f"a kernel started {host.time_range.start - start:.0f} us before it was launched"
        assert end <= host.time_range.end + 1000, f"a kernel ended {end - host.time_range.end:.0f} us after the device had finished"


@check("training", requires=["profiler"])
def time_belongs_to_the_operator_that_was_called(subject: Subject) -> None:
    """If an addition of tensors with four elements follows a matmul, the profiler attributes device time to both operators, and more
    device time to the matmul. The matrices are enlarged until the matmul takes 10 ms or the matrices have 8192 rows."""
    import torch

    matmul = _long_matmul(subject)
    x = torch.ones(4, device=subject.device)

    def work() -> None:
        matmul()
        torch.add(x, x)

    profiler = record(subject, work)
    long, short = (device_microseconds(profiler, operator) for operator in ("aten::mm", "aten::add"))
    assert long > 0, "no device time is attributed to the matmul"
    assert short > 0, "no device time is attributed to the addition"
    assert long > short, f"a long matmul has {long:.0f} us of the device's time, and a short addition {short:.0f} us"


@check("training", requires=["profiler"])
def kernels_are_on_the_device(subject: Subject) -> None:
    """The recorded events of kernels and copies have the index of the device, and the device type by which the profiler knows the device,
    such as ``CUDA`` or ``PrivateUse1``."""
    from accelkit_conformance.oracle.recordings import device_type

    work = _three_matmuls(subject)
    events = device_work(record(subject, work))
    assert events, "no kernel of the matmuls was recorded"
    expected = (device_type(subject), subject.device.index or 0)
    wrong = {(event.device_type, event.device_index) for event in events} - {expected}
    assert not wrong, f"kernels on {subject.device} are recorded with the device type and index {wrong}, not {expected}"


@check("training", requires=["profiler", "streams"])
def kernels_of_every_stream_are_recorded(subject: Subject) -> None:
    """As many kernels and copies are recorded for three matmuls on a new stream as for three matmuls on the current stream."""
    from accelkit_conformance.oracle.device_streams import make_stream, on_stream

    work, stream = _three_matmuls(subject), make_stream(subject)

    def work_on_stream() -> None:
        with on_stream(subject, stream):
            work()

    work_on_stream()
    numbers = [len(device_work(record(subject, call))) for call in (work, work_on_stream)]
    assert numbers[0] == numbers[1], f"{numbers[0]} kernels of the current stream are recorded, but {numbers[1]} of a new stream"


@check("training", requires=["profiler"])
def recordings_contain_no_other_work(subject: Subject) -> None:
    """Two recordings of the same three matmuls contain the same number of kernels and copies, and this number is at least one. A recording
    during which nothing runs contains none.
    """
    work = _three_matmuls(subject)
    work()
    numbers = [len(device_work(record(subject, work))) for _ in range(2)]
    assert numbers[0], "no kernel of the matmuls was recorded"
    assert numbers[0] == numbers[1], f"two recordings of the same work have {numbers[0]} and {numbers[1]} kernels and copies"
    nothing = device_work(record(subject, lambda: None))
    assert not nothing, f"{len(nothing)} kernels were recorded although nothing was called, such as {nothing[0].name}"


@check("training", requires=["profiler", "numbered_devices"])
def kernels_have_their_device(subject: Subject) -> None:
    """Work on each of two devices is recorded with the index of that device."""
    import torch

    for device in (subject.device, subject.second_device()):
        x = torch.ones(64, 64, device=device)
        subject.accelerator.synchronize(device)

        def work(x: torch.Tensor = x, device: torch.device = device) -> None:
            torch.mm(x, x)
            subject.accelerator.synchronize(device)

        found = {event.device_index for event in device_work(record(subject, work))}
        assert found == {device.index}, f"work on {device} was recorded on the devices {sorted(found)}"


@check("training", requires=["profiler_memory"])
def memory_is_recorded(subject: Subject) -> None:
    """When a tensor of 8 MiB is created and freed, the profiler records one allocation of at least 8 MiB and at most 16 MiB, and then one
    deallocation of the same number of bytes. Records of less than 4 MiB are ignored."""
    import torch

    def work() -> None:
        block = torch.empty(_BYTES // 4, dtype=torch.float32, device=subject.device)
        del block

    sizes = allocations(subject, record(subject, work, profile_memory=True), at_least=_BYTES // 2)
    assert sizes, f"an allocation of {_BYTES} bytes was not recorded"
    assert _BYTES <= sizes[0] <= 2 * _BYTES, f"{_BYTES} bytes were allocated, and {sizes[0]} were recorded"
    assert sizes[1:] == [-sizes[0]], f"{sizes[0]} bytes were recorded as allocated and later freed, and then {sizes[1:]}"


@check("training")
def recording_changes_no_result(subject: Subject) -> None:
    """A model gives the same loss and gradients before, during and after a recording by torch.profiler, within the default tolerances of
    ``torch.testing.assert_close``. The recording includes shapes and memory."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(subject.device)
    batch = torch.randn(8, 16).to(subject.device)
    seen: list[list[torch.Tensor]] = []

    def work() -> None:
        model.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        seen.append([loss.detach().cpu(), *(parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None)])

    work()
    record(subject, work, profile_memory=True, record_shapes=True)
    work()
    for name, found in (("while it was recorded", seen[1]), ("after it was recorded", seen[2])):
        for number, (before, now) in enumerate(zip(seen[0], found, strict=True)):
            torch.testing.assert_close(now, before, msg=lambda text, name=name, number=number: f"result {number} {name}: {text}")


@check("full", requires=["profiler"])
def totals_equal_their_parts(subject: Subject) -> None:
    """A forward pass of three matmuls and a sum, and its backward pass, are recorded. In the averages of the recording, ``aten::mm`` has at
    least nine calls, and ``aten::sum`` at least one. The sum of the device times of all operators differs from the time of the recorded
    kernels and copies by at most 5 % plus one microsecond. Every matmul, including those of the backward pass, has device time."""
    from accelkit_conformance.oracle.recordings import check_totals

    check_totals(subject)
