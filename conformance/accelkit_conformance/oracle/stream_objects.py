"""Checks of streams and events: recording events, measuring time with them, the current stream of each thread, and reading a tensor on a
busy stream."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.device_streams import (
    current_stream,
    elapsed,
    is_accelerator,
    make_event,
    make_stream,
    on_stream,
    ways_to_enter,
    ways_to_make_events,
)
from accelkit_conformance.oracle.places import run_at
from accelkit_conformance.oracle.programs import random_values
from accelkit_conformance.oracle.queued_copies import keep_busy
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LENGTH = 64
_MOST_SECONDS = 30.0


def check_recording_on_a_stream(subject: Subject, way: str) -> None:
    """Check that an event completes only after the work of the stream that records it (the producer), and that another stream (the
    consumer) waits for the event.

    The event is recorded while a third stream is current. All combinations of streams and events of torch and of the device's module are
    used. If the stream is not of the same origin as the event, a TypeError or RuntimeError is accepted.

    Args:
        subject: The plugin under test, with its device.
        way: The call to check. ``record`` checks ``event.record(producer)``, ``record_event`` checks ``producer.record_event()``,
            ``given_event`` checks ``producer.record_event(event)``, and ``wait`` checks ``event.wait()`` while the consumer is current.
            ``foreign_wait`` checks ``consumer.wait_event(event)`` with an event that was recorded on the current stream, where both event
            and stream are torch's, or both are the device module's.

    Raises:
        AssertionError: If the event completes before the work of the producer, or if the consumer does not wait for this work.
    """
    if way == "foreign_wait":
        _check_foreign_waits(subject)
        return
    pairs = itertools.product(enumerate(ways_to_enter(subject)), enumerate(ways_to_make_events(subject)))
    for value, ((origin, streams), (other_origin, new_event)) in enumerate(pairs, 1):
        with contextlib.suppress(*(() if origin == other_origin else (TypeError, RuntimeError))):
            _check_recording(subject, way, float(value), streams, new_event)


def _check_recording(
    subject: Subject,
    way: str,
    value: float,
    streams: tuple[Callable[[], Any], Callable[[Any], contextlib.AbstractContextManager[Any]]],
    new_event: Callable[[], Any],
) -> None:
    new_stream, enter = streams
    producer, consumer = new_stream(), new_stream()
    host, source = torch.zeros(_LENGTH).pin_memory(), torch.full((_LENGTH,), value, device=subject.device)
    target = torch.zeros(_LENGTH, device=subject.device)
    subject.synchronize()
    with enter(producer):
        keep_busy(subject.device)
        host.copy_(source, non_blocking=True)
    event = new_event()
    with enter(new_stream()):
        if way == "record_event":
            event = producer.record_event()
        elif way == "given_event":
            producer.record_event(event)
        else:
            event.record(producer)
    with enter(consumer):
        if way == "wait":
            event.wait()
        else:
            consumer.wait_event(event)
        target.copy_(host, non_blocking=True)
    event.synchronize()
    assert host.tolist() == [value] * _LENGTH, f"{way}: an event that was recorded on a stream is done before the work of the stream"
    consumer.synchronize()
    assert target.tolist() == [value] * _LENGTH, f"{way}: a stream did not wait for the work before the event"


def _check_foreign_waits(subject: Subject) -> None:
    """Record an event on the current stream, which has the same origin as the event, and make streams of every origin wait for the event.

    Only the call to ``wait_event`` may raise a TypeError or RuntimeError, and only if the stream is not of the same origin as the event.
    """
    ways = list(enumerate(ways_to_enter(subject)))
    own = zip(ways, ways_to_make_events(subject), strict=False)
    for value, (((origin, (new_producer, enter)), new_event), (other_origin, (new_consumer, enter_other))) in enumerate(
        itertools.product(own, ways), 1
    ):
        producer, consumer, event, target = new_producer(), new_consumer(), new_event(), torch.zeros(_LENGTH, device=subject.device)
        host, source = torch.zeros(_LENGTH).pin_memory(), torch.full((_LENGTH,), float(value), device=subject.device)
        subject.synchronize()
        with enter(producer):
            keep_busy(subject.device)
            host.copy_(source, non_blocking=True)
            event.record()
        try:
            consumer.wait_event(event)
        except (TypeError, RuntimeError):
            if origin == other_origin:
                raise
            event.synchronize()
            continue
        with enter_other(consumer):
            target.copy_(host, non_blocking=True)
        consumer.synchronize()
        names = ["torch", f"torch.{subject.device_type}"]
        assert target.tolist() == [value] * _LENGTH, (
            f"after wait_event of a Stream of {names[other_origin]} with an Event of {names[origin]}, the stream did not wait for the work "
            "before the event"
        )


def check_times(subject: Subject) -> None:
    """Check ``elapsed_time`` of events.

    The times between successive events must not be negative, and must add up to the time between the first and the last of these events. A
    second call with the same two events must return the same time. The host may wait for the events in any way: after each of ``_waits``,
    the time between two events must not be negative, and must be the same in another thread. If one of the events was created with
    ``enable_timing=False`` or was not recorded, the call must raise an error.

    Raises:
        AssertionError: If a time is wrong, or if an error is missing.
        NotSupported: If the device's events do not measure time.
    """
    if not hasattr(make_event(subject), "elapsed_time"):
        raise NotSupported("the device's events do not measure time")
    x = torch.ones(256, 256, device=subject.device)
    subject.synchronize()
    events = [make_event(subject, enable_timing=True) for _ in range(12)]
    for number, event in enumerate(events):
        event.record()
        if number < 4:
            x = x @ x / 256
    for event in events:
        event.synchronize()
        event.synchronize()
    times = [elapsed(start, end) for start, end in itertools.pairwise(events)]
    assert min(times) >= 0, f"the times between successive events are {times} ms"
    for start, end in ((0, 4), (2, 9), (0, 11)):
        whole, parts = elapsed(events[start], events[end]), sum(times[start:end])
        assert abs(whole - parts) <= 0.05 + 0.02 * whole, f"{whole:.4f} ms are between two events, but the parts add up to {parts:.4f} ms"
        again = elapsed(events[start], events[end])
        assert again == whole, f"elapsed_time of two events returned {whole} ms, and then {again} ms"
    for name, wait in _waits(subject).items():
        start, end = (make_event(subject, enable_timing=True) for _ in range(2))
        start.record()
        x = x @ x / 256
        end.record()
        wait(x, end)
        here = elapsed(start, end)
        assert here >= 0, f"after waiting with {name}, elapsed_time returned {here} ms"
        (there,) = run_at(subject, "another thread", subject.device, lambda start=start, end=end: [elapsed(start, end)])  # type: ignore[misc]
        assert there == here, f"after waiting with {name}, elapsed_time returned {here} ms, and {there} ms in another thread"
    untimed = make_event(subject, enable_timing=False)
    untimed.record()
    untimed.synchronize()
    unrecorded = make_event(subject, enable_timing=True)
    for what, other in {"an event without timing": untimed, "an event that was not recorded": unrecorded}.items():
        with raises(subject, RuntimeError, ValueError, doing=f"elapsed_time with {what}"):
            events[0].elapsed_time(other)


def _waits(subject: Subject) -> dict[str, Callable[[torch.Tensor, Any], Any]]:
    """Return functions that wait for work on the current stream, by name. Each takes a result of this work and an event after it."""

    def poll(x: torch.Tensor, event: Any) -> None:
        end = time.monotonic() + _MOST_SECONDS
        while not event.query():
            assert time.monotonic() < end, f"query() of an event is still False after {_MOST_SECONDS:g} s, although no work is left"

    def wait_for_a_later_event(x: torch.Tensor, event: Any) -> None:
        later = make_event(subject)
        later.record()
        later.synchronize()

    return {
        "synchronize": lambda x, event: subject.synchronize(),
        **({"torch.accelerator.synchronize": lambda x, event: torch.accelerator.synchronize()} if is_accelerator(subject) else {}),
        **({"a stream": lambda x, event: current_stream(subject).synchronize()} if subject.capabilities.can("streams") else {}),
        "item": lambda x, event: x.sum().item(),
        "query": poll,
        "a later event": wait_for_a_later_event,
    }


def check_streams_of_threads(subject: Subject) -> None:
    """Check that each thread has its own current stream, and that ``set_stream`` makes a stream current.

    Raises:
        AssertionError: If a stream that one thread makes current is current in another thread, if another stream is current after
            ``set_stream``, or if a new stream equals the stream that was current before.
        NotSupported: If the device does not declare streams, and has only one stream.
    """
    before, stream = current_stream(subject), make_stream(subject)
    if stream == before and subject.capabilities["streams"] == "undeclared":
        raise NotSupported("streams: undeclared, and a new stream is the current one, so the device has only one")

    def current_in_thread() -> list[Any]:
        subject.accelerator.setup_device(subject.device)
        return [current_stream(subject)]

    with on_stream(subject, stream):
        (found,) = run_at(subject, "another thread", subject.device, current_in_thread)
        assert found != stream, "a stream that one thread entered is current in a new thread"
    ways: dict[str, Callable[[Any], Any]] = {}
    if (set_stream := subject.optional_function("set_stream")) is not None:
        ways["set_stream"] = set_stream
    if is_accelerator(subject):
        ways["torch.accelerator.set_stream"] = torch.accelerator.set_stream
    for name, select in ways.items():

        def select_in_thread(select: Callable[[Any], Any] = select) -> list[Any]:
            subject.accelerator.setup_device(subject.device)
            select(stream)
            return [current_stream(subject)]

        (found,) = run_at(subject, "another thread", subject.device, select_in_thread)
        assert found == stream, f"after {name} in a thread, another stream is current there"
        assert current_stream(subject) == before, f"{name} in another thread changed the current stream of the main thread"
        try:
            select(stream)
            assert current_stream(subject) == stream, f"after {name}, another stream is current"
        finally:
            select(before)
        assert current_stream(subject) == before, f"{name} does not restore a stream"
    assert stream != before, "a new stream equals the stream that was current before"


_READS: dict[str, Callable[[torch.Tensor], float]] = {
    "item": lambda x: float(x[0].item()),
    "tolist": lambda x: float(x.tolist()[-1]),
    "cpu": lambda x: float(x.cpu()[3]),
    "to of another dtype": lambda x: float(x.to("cpu", torch.int32)[3]),
    "copy_": lambda x: float(torch.zeros(_LENGTH).copy_(x)[3]),
    "copy_ of a slice": lambda x: float(torch.zeros(_LENGTH // 2).copy_(x[::2])[3]),
    "float": lambda x: float(x[1]),
    "int": lambda x: int(x[1]),
    "bool": lambda x: float(bool((x == 2).all())) + 1,
    "nonzero": lambda x: float(len((x == 2).nonzero())) / _LENGTH * 2,
    "a mask": lambda x: float(len(x[x == 2])) / _LENGTH * 2,
    "unique": lambda x: float(x.unique()[0]),
    "equal": lambda x: 1.0 + torch.equal(x, torch.full_like(x, 2)),
    "repr": lambda x: float(repr(x[:1]).split("[")[1].split(".")[0]),
    "numpy(force=True)": lambda x: float(x.numpy(force=True)[3]),
    "list": lambda x: float(list(x)[5]),
}
"""Ways to read, on the host, a tensor whose elements are 2. Each returns 2."""


def check_reading_on_a_stream(subject: Subject) -> None:
    """Check that reading a tensor on a busy stream waits for the work that was queued on this stream.

    If a read returns an old value, from before the queued work, a failure is recorded in the subject.

    Raises:
        NotSupported: If the device lacks int32, int64 or bool.
    """
    subject.needs("int32", "int64", "bool")
    two = torch.full((_LENGTH,), 2.0).pin_memory()
    for name, read in _READS.items():
        stream = make_stream(subject)
        with subject.sample(name, {"name": name}):
            x = torch.zeros(_LENGTH, device=subject.device)
            subject.synchronize()
            with on_stream(subject, stream):
                keep_busy(subject.device)
                x.copy_(two, non_blocking=True)
                found = read(x)
            assert found == 2, f"{name} on a busy stream read {found}, not 2"
            stream.synchronize()


def check_priorities(subject: Subject) -> None:
    """Check that streams with a priority can be made current, and that work on them gives the right results.

    Failures are recorded in the subject. A priority other than 0 may be refused when the stream is created.

    Raises:
        NotSupported: If the device lacks float32.
    """
    subject.needs("float32")
    for (number, (make, enter)), priority in itertools.product(enumerate(ways_to_enter(subject)), (-1, 0)):
        with subject.sample(f"priority {priority}, Stream of {'the module' if number else 'torch'}", {"priority": priority}):
            before = current_stream(subject)
            try:
                stream = make(priority=priority)
            except (RuntimeError, ValueError, TypeError):
                if priority == 0:
                    raise
                continue
            with enter(stream):
                assert current_stream(subject) == stream, "a stream that was entered is not current"
                compare_call(subject, _attention_of_products, [random_values(torch.device("cpu"), 2, 64, 32)], num_stages=6)
            assert current_stream(subject) == before, "leaving the stream did not restore the previous stream"
            stream.synchronize()
            assert stream.query(), "a synchronized stream reports that it has work"


def _attention_of_products(x: torch.Tensor) -> list[torch.Tensor]:
    leaf = x.detach().requires_grad_()
    y = F.scaled_dot_product_attention(leaf @ leaf.mT @ leaf / 64, leaf, leaf)
    return [y, *torch.autograd.grad(y, leaf, torch.ones_like(y))]
