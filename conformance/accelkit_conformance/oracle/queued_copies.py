"""Checks of the order of work on streams.

Work that depends on a copy must wait for this copy, even while the copy is still queued on a busy stream.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.device_streams import current_stream, make_event, make_stream, on_stream

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LENGTH = 64
_NUM_COPIES = 4
_MOST_SECONDS = 30.0


@functools.cache
def _large(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor of 32 MiB in pinned memory and a tensor of 32 MiB on the device.

    Both tensors are cached, because pinning memory takes a long time.
    """
    return torch.zeros(8 << 20).pin_memory(), torch.zeros(8 << 20, device=device)


def keep_busy(device: torch.device, num_copies: int = _NUM_COPIES) -> None:
    """Queue copies of 32 MiB from the device to pinned memory on the device's current stream. Four of them take a few milliseconds."""
    here, there = _large(device)
    for _ in range(num_copies):
        here.copy_(there, non_blocking=True)


def set_to_zero(written: Iterable[torch.Tensor], device: torch.device) -> Callable[[], None]:
    """Set the contiguous tensors of ``written`` that are on ``device`` to zero.

    Return a function that keeps the current stream of ``device`` busy, and then queues copies that restore the tensors. The copies come
    from pinned memory.
    """
    restored = [
        (one.detach(), one.detach().cpu().pin_memory())
        for one in written
        if one.device == device and one.layout is torch.strided and one.is_contiguous() and one.numel()
    ]
    for there, _ in restored:
        there.zero_()

    def restore() -> None:
        keep_busy(device, 1)
        for there, here in restored:
            there.copy_(here, non_blocking=True)

    return restore


def check_order_of_copies(subject: Subject, dtype: str) -> None:
    """Check two copies on a busy stream, from the device to pinned memory and back: the second copy must wait for the first.

    Args:
        subject: The plugin under test, with its device.
        dtype: The dtype of the tensor that the second copy writes. The check is made with pinned memory of this dtype and with pinned
            memory of float32.

    Raises:
        AssertionError: If either copy gives wrong values.
        NotSupported: If the device lacks the dtype.
    """
    subject.needs(dtype)
    values = torch.arange(1.0, _LENGTH + 1)
    for host_dtype, from_step, host_step, to_step in itertools.product({"float32", dtype}, (1, 2), (1, 2), (1, 2)):
        source = torch.zeros(_LENGTH * from_step, device=subject.device)[::from_step]
        source.copy_(values)
        host = torch.zeros(_LENGTH * host_step, dtype=getattr(torch, host_dtype)).pin_memory()[::host_step]
        target = torch.zeros(_LENGTH * to_step, dtype=getattr(torch, dtype), device=subject.device)[::to_step]
        subject.synchronize()
        keep_busy(subject.device)
        host.copy_(source, non_blocking=True)
        target.copy_(host, non_blocking=True)
        subject.synchronize()
        settings = f"float32 to {host_dtype} to {dtype}, with the steps {from_step}, {host_step} and {to_step}"
        assert host.float().tolist() == values.tolist(), f"{settings}: the copy to the host gave {host.tolist()[:4]} ..."
        assert target.float().tolist() == values.tolist(), f"{settings}: the copy to the device gave {target.tolist()[:4]} ..."


def check_new_recording(subject: Subject) -> None:
    """Check that an event can be recorded again after new work.

    The event must complete only after this work, and a stream that waits for the event must see the results of this work.

    Raises:
        AssertionError: If the event completes too early, if it is not complete after ``synchronize``, or if a stream does not wait.
    """
    event, producer, consumer = make_event(subject), make_stream(subject), make_stream(subject)
    for value in (1.0, 2.0, 3.0):
        host, source = torch.zeros(_LENGTH).pin_memory(), torch.full((_LENGTH,), value, device=subject.device)
        target = torch.zeros(_LENGTH, device=subject.device)
        subject.synchronize()
        with on_stream(subject, producer):
            keep_busy(subject.device)
            host.copy_(source, non_blocking=True)
            event.record()
        consumer.wait_event(event)
        with on_stream(subject, consumer):
            target.copy_(host, non_blocking=True)
        if event.query():
            assert producer.query(), "an event that was recorded again reports that it is done before the work that precedes it"
        event.synchronize()
        assert host.tolist() == [value] * _LENGTH, "the work before an event was not done after waiting for the event"
        assert event.query(), "an event reports that it is not done after it was synchronized"
        consumer.synchronize()
        assert target.tolist() == [value] * _LENGTH, "a stream did not wait for an event that was recorded again"


def check_events_after_copies(subject: Subject) -> None:
    """Record an event after a copy from the device to the host, and check that the event completes only after this copy.

    After recording the event, the check waits only for the event, not for a stream or another copy.

    Raises:
        AssertionError: If the event is complete, but the host does not have the values yet.
    """
    for length, way in itertools.product((1, 1000, 1 << 18), ("copy_", "to")):
        values = torch.arange(1.0, length + 1)
        source = values.to(subject.device)
        for waiting in ("synchronize", "query"):
            event = make_event(subject)
            subject.synchronize()
            if way == "copy_":
                host = torch.zeros(length).pin_memory().copy_(source, non_blocking=True)
            else:
                host = source.to("cpu", non_blocking=True)
            event.record()
            if waiting == "synchronize":
                event.synchronize()
            else:
                while not event.query():
                    time.sleep(0)
            wrong = int((host != values).sum())
            assert not wrong, f"{waiting} of an event did not wait for {way}(non_blocking=True): {wrong} of {length} values were missing"


def check_waiting_for_another_device(subject: Subject, way: str) -> None:
    """Make a stream wait for work on another device, and check that the stream then sees the values that this work wrote.

    New streams are tested, and the streams that are current on their devices. Each device in turn is current while the stream is made to
    wait.

    Args:
        subject: The plugin under test, with its device.
        way: The method that waits: ``wait_stream``, ``wait_event`` or the event's ``wait``.

    Raises:
        AssertionError: If the stream sees the values from before the work.
        NotSupported: If there is only one device.
    """
    devices = (subject.device, subject.second_device())
    for (here, there), current, get in itertools.product(itertools.permutations(devices), devices, (make_stream, current_stream)):
        producer, consumer, target = get(subject, here), get(subject, there), torch.zeros(_LENGTH, device=there)
        host = _copied_late(subject, producer, here)
        with subject.module.device(here), on_stream(subject, producer):
            event = make_event(subject)
            event.record()
        with subject.module.device(current):
            if way == "wait_stream":
                consumer.wait_stream(producer)
            elif way == "wait_event":
                consumer.wait_event(event)
            else:
                event.wait(consumer)
        with subject.module.device(there), on_stream(subject, consumer):
            target.copy_(host, non_blocking=True)
        consumer.synchronize()
        assert target.tolist() == [1.0] * _LENGTH, (
            f"after {way} while {current} is current, a stream of {there} read the values from before the work on {here}"
        )


def _copied_late(subject: Subject, stream: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor of zeros in pinned memory. Slow work that is queued on ``stream``, a stream of ``device``, sets the zeros to 1."""
    host, source = torch.zeros(_LENGTH).pin_memory(), torch.ones(_LENGTH, device=device)
    for one in subject.devices[:2]:
        subject.accelerator.synchronize(one)
    with subject.module.device(device), on_stream(subject, stream):  # entering a stream that is current does not switch torch's device
        keep_busy(device)
        host.copy_(source, non_blocking=True)
    return host


def check_methods_on_another_device(subject: Subject, way: str) -> None:
    """Call a method of a busy stream while another device is current, and check that the method acts on this stream.

    The streams are a new one and the current one of each device. Each device is current in turn.

    Args:
        subject: The plugin under test, with its device.
        way: The method: ``query``, ``synchronize`` or ``record_event``.

    Raises:
        AssertionError: If the method reports the end of the work too early or not at all, or if it changes the current device or stream.
        NotSupported: If there is only one device.
    """
    devices = (subject.device, subject.second_device())
    for device, current, get in itertools.product(devices, devices, (make_stream, current_stream)):
        stream = get(subject, device)
        host = _copied_late(subject, stream, device)
        how = f"{way} of a stream of {device} while {current} is current"
        with subject.module.device(current):
            before = current_stream(subject, current)
            if way == "synchronize":
                stream.synchronize()
            else:
                waiting, end = (stream if way == "query" else stream.record_event()), time.monotonic() + _MOST_SECONDS
                while not waiting.query():
                    assert time.monotonic() < end, f"{how}: query() is still False after {_MOST_SECONDS:g} s"
            found = host.tolist()
            assert stream.query(), f"{how}: the work is done, but query() of the stream is False"
            assert subject.module.current_device() == current.index, f"{how} made another device current"
            assert current_stream(subject, current) == before, f"{how} made another stream current"
        assert found == [1.0] * _LENGTH, f"{how}: the work of the stream was not done"


_BACKWARD_PASSES: Mapping[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None]] = {
    "backward": lambda y, x, gradient: (y.backward(gradient), x.grad)[1],  # type: ignore[func-returns-value, no-untyped-call]
    "backward with inputs": lambda y, x, gradient: (y.backward(gradient, inputs=[x]), x.grad)[1],  # type: ignore[func-returns-value, no-untyped-call]
    "torch.autograd.grad": lambda y, x, gradient: torch.autograd.grad(y, x, gradient)[0],
    "torch.autograd.backward": lambda y, x, gradient: (torch.autograd.backward([y], [gradient]), x.grad)[1],  # type: ignore[func-returns-value]
}
"""Functions, by name, that run a backward pass from a result and its gradient, and return the gradient of a leaf."""


def check_stream_of_backward(subject: Subject, call: str) -> None:
    """Queue work on the stream of the forward pass, and check that the backward pass sees the values that this work writes.

    Args:
        subject: The plugin under test, with its device.
        call: Where the functions of ``_BACKWARD_PASSES`` are called: ``on_its_stream`` (the stream of the forward pass) or
            ``on_another_stream``. In the first case, the queued work writes the output gradient. In the second case, it writes a factor by
            which the backward pass multiplies the output gradient.

    Raises:
        AssertionError: If the backward pass reads the values from before the queued work.
    """
    is_inside = call == "on_its_stream"
    for (name, gradient_of), value in itertools.product(_BACKWARD_PASSES.items(), (2.0, 3.0)):
        host = torch.full((_LENGTH,), value).pin_memory()
        x = torch.ones(_LENGTH, device=subject.device, requires_grad=True)
        gradient, factor = torch.ones(_LENGTH, device=subject.device), torch.ones(_LENGTH, device=subject.device)
        stream = make_stream(subject)
        subject.synchronize()
        with on_stream(subject, stream):
            y = x * factor
            keep_busy(subject.device)
            (gradient if is_inside else factor.data).copy_(host, non_blocking=True)  # autograd does not notice writes through .data
            if is_inside:
                result = gradient_of(y, x, gradient)
                stream.synchronize()
        if not is_inside:
            result = gradient_of(y, x, gradient)
        assert result is not None, f"{name} gave no gradient"
        found = (result * 1).tolist()
        assert found == [value] * _LENGTH, f"{name}: an operator did not wait for work that was queued on its forward operator's stream"


def check_empty_cache_during_work(subject: Subject) -> None:
    """Free a tensor that queued work uses, empty the cache and fill new tensors, and check the result of the queued work.

    The work is queued on the current stream and on a new stream of each device, and the cache is emptied while each device is current.

    Raises:
        AssertionError: If the result is wrong.
    """
    devices = subject.devices[:2] if subject.capabilities.can("numbered_devices") else subject.devices[:1]
    make_current = subject.module.device if len(devices) > 1 else lambda device: contextlib.nullcontext()
    host = torch.ones(1 << 20).pin_memory()
    for device, current, get in itertools.product(devices, devices, (make_stream, current_stream)):
        with make_current(device), on_stream(subject, get(subject, device)):
            used = torch.zeros(1 << 20, device=device)
            keep_busy(device)
            used.copy_(host, non_blocking=True)
            found = torch.zeros(_LENGTH).pin_memory().copy_(used[:_LENGTH], non_blocking=True)
            del used
            with make_current(current):
                subject.accelerator.empty_cache()
            torch.full((1 << 20,), 7.0, device=device)
            subject.accelerator.synchronize(device)
        assert found.tolist() == [1.0] * _LENGTH, f"empty_cache while {current} is current changed the results of work on {device}"
