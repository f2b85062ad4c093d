"""Streams run their work in order and can wait for each other. Events order the work of streams and measure time."""

from __future__ import annotations

import functools
import itertools
import time
from typing import TYPE_CHECKING

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


def _slow_producer(subject: Subject, stream: object, target: torch.Tensor) -> None:
    """Queue slow work on ``stream`` and, after this work, a copy that sets all elements of ``target`` to 1.

    If the device has pinned memory, the copied values come from pinned memory. Otherwise, they are computed on the device.
    """
    import torch

    from accelkit_conformance.oracle.device_streams import num_slow_products, on_stream, slow_product

    repeats = num_slow_products(subject)
    with on_stream(subject, stream):
        a = torch.rand(512, 512, device=target.device)
        for _ in range(repeats):
            a = slow_product(a)
        if subject.capabilities.can("pinned_memory"):
            target.copy_(torch.ones(target.shape).pin_memory(), non_blocking=True)
        else:
            target.copy_((a.sum() * 0 + 1).expand_as(target))


@check("smoke", requires=["streams"])
def current_stream_is_kept(subject: Subject) -> None:
    """Entering a stream makes it current, and leaving it, even through an error, restores the previous stream. This is tested with
    ``torch.Stream``, and with ``Stream`` and ``stream`` of the device's module if it has both."""
    from accelkit_conformance.oracle.device_streams import check_contexts

    check_contexts(subject)


@check("training", requires=["streams"])
def streams_can_be_entered_again(subject: Subject) -> None:
    """A stream can be entered again while its context is active, directly or in the context of another stream. Leaving each context
    restores the stream that was current when the context was entered. This is tested with ``torch.Stream`` and with the streams of the
    device's module. Streams that the installed version of torch cannot enter again are not tested.
    """
    from accelkit_conformance.oracle.device_streams import check_nested_contexts

    check_nested_contexts(subject)


@check("smoke", requires=["streams"])
def waiting_streams_see_the_value(subject: Subject) -> None:
    """A stream that has waited for another stream, with ``wait_stream`` or with an event, reads the values that the other stream wrote.
    This is tested with two streams of the same device and, if there are several devices, also with streams of two different devices. The
    streams are made with ``torch.Stream`` and, if the device's module has ``Stream``, also with that class.
    """
    import torch

    from accelkit_conformance.oracle.device_streams import make_event, make_stream, on_stream

    makes = [functools.partial(make_stream, subject), *([subject.module.Stream] if hasattr(subject.module, "Stream") else [])]
    for make, device, wait in itertools.product(makes, subject.devices[:2], ("wait_stream", "event")):
        for _ in range(5):
            target = torch.zeros(64, device=device)
            subject.synchronize()
            producer, consumer = make(device=device), make(device=subject.device)
            _slow_producer(subject, producer, target)
            if wait == "event":
                with on_stream(subject, producer):
                    event = make_event(subject)
                    event.record()
                consumer.wait_event(event)
            else:
                consumer.wait_stream(producer)
            with on_stream(subject, consumer):
                seen = target * 1 if device == subject.device else target.to(subject.device)
            consumer.synchronize()
            assert seen.tolist() == [1.0] * 64, (
                f"after {wait}, the consumer read the old values instead of those that the stream on {device} wrote"
            )


@check("smoke", requires=["streams", "pinned_memory"])
def copies_are_ordered_with_their_stream(subject: Subject) -> None:
    """After a copy with ``non_blocking=True`` from pinned memory has been queued, later work on the same stream sees the copied values."""
    import torch

    from accelkit_conformance.oracle.device_streams import make_stream, on_stream

    stream = make_stream(subject)
    source = torch.ones(1 << 20).pin_memory()
    for _ in range(5):
        target = torch.zeros(1 << 20, device=subject.device)
        subject.synchronize()
        with on_stream(subject, stream):
            target.copy_(source, non_blocking=True)
            seen = target.sum()
        stream.synchronize()
        assert seen.item() == 1 << 20, f"work after the copy saw {seen.item():g} of {1 << 20} ones"


@check("smoke", requires=["streams"])
def synchronizing_a_stream(subject: Subject) -> None:
    """After ``stream.synchronize()``, the work of the stream is done and ``stream.query()`` returns True."""
    import torch

    from accelkit_conformance.oracle.device_streams import make_stream

    stream = make_stream(subject)
    target = torch.zeros(8, device=subject.device)
    subject.synchronize()
    _slow_producer(subject, stream, target)
    stream.synchronize()
    assert stream.query(), "a synchronized stream reports that it has work"
    assert target.tolist() == [1.0] * 8


@check("smoke", requires=["streams"])
def device_synchronize_covers_all_streams(subject: Subject) -> None:
    """``synchronize(device)`` waits for every stream of the device."""
    import torch

    from accelkit_conformance.oracle.device_streams import make_stream

    streams = [make_stream(subject) for _ in range(3)]
    targets = [torch.zeros(8, device=subject.device) for _ in streams]
    subject.synchronize()
    for stream, target in zip(streams, targets, strict=True):
        _slow_producer(subject, stream, target)
    subject.synchronize()
    assert all(stream.query() for stream in streams), "a stream has work left after the device was synchronized"
    assert all(target.tolist() == [1.0] * 8 for target in targets)


@check("smoke", requires=["events"])
def events_measure_time(subject: Subject) -> None:
    """``elapsed_time`` returns the milliseconds that the work between two recorded events takes. The host also measures ``t``, the
    milliseconds from the recording of the first event until the work is done. ``elapsed_time`` is more than 0 and at most ``1.5 * t + 5``
    and, in at least one of five attempts, at least ``t / 4``. Time in which the device has nothing to do counts as well: if the host
    sleeps for 50 ms between two events, ``elapsed_time`` is at least 25. Events without ``elapsed_time``, such as those of the CPU, are not
    checked."""
    import torch

    from accelkit_conformance.oracle.device_streams import elapsed, make_event, num_slow_products, slow_product

    if not hasattr(make_event(subject), "elapsed_time"):  # torch.cpu.Event
        return
    a = torch.rand(512, 512, device=subject.device)
    pairs = []
    for _ in range(5):  # other programs may take the processor at any time: the best of five counts
        start, end = make_event(subject, enable_timing=True), make_event(subject, enable_timing=True)
        subject.synchronize()
        began = time.perf_counter()
        start.record()
        for _ in range(2 * num_slow_products(subject)):
            a = slow_product(a)
        end.record()
        end.synchronize()
        outside = (time.perf_counter() - began) * 1000
        inside = elapsed(start, end)
        assert inside > 0, f"{inside} ms passed between the events"
        assert inside <= outside * 1.5 + 5, f"{inside:.2f} ms passed between the events, and {outside:.2f} ms outside"
        pairs.append((inside, outside))
    inside, outside = max(pairs, key=lambda pair: pair[0] / pair[1])
    assert inside >= outside / 4, f"{inside:.4f} ms passed between the events, and {outside:.4f} ms on the host until they were done"
    start.record()
    start.synchronize()
    time.sleep(0.05)
    end.record()
    end.synchronize()
    assert elapsed(start, end) >= 25, f"{elapsed(start, end):.4f} ms passed between two events while the host slept for 50 ms"


@check("training", requires=["streams", "events"])
def handles_are_freed(subject: Subject) -> None:
    """Creating, using and freeing 4,000 streams and 4,000 events, one after another, adds fewer than 50 open files, fewer than 50 threads
    and less than 32 MiB of memory to the process."""
    from accelkit_conformance.oracle.device_streams import check_handles

    check_handles(subject)


@check("smoke", requires=["events"])
def events_are_done_after_waiting(subject: Subject) -> None:
    """After a recorded event has been synchronized, its ``query()`` returns True, and the event can be recorded again."""
    import torch

    from accelkit_conformance.oracle.device_streams import make_event

    event = make_event(subject)
    for value in (1.0, 2.0):
        x = torch.full((1000,), value, device=subject.device) * 2
        event.record()
        event.synchronize()
        assert event.query(), "a synchronized event reports that it is not done"
        assert x[0].item() == value * 2


@check("training", requires=["streams", "events", "pinned_memory"])
def a_new_recording_replaces_the_old(subject: Subject) -> None:
    """If new work is queued and a completed event is then recorded again, the event completes only when the new work has completed. Streams
    that wait for the event see the results of the new work."""
    from accelkit_conformance.oracle.queued_copies import check_new_recording

    check_new_recording(subject)


@check("training", requires=["streams", "events", "pinned_memory", "numbered_devices"], over=["wait_stream", "wait_event", "event.wait"])
def waiting_for_another_device(subject: Subject, way: str) -> None:
    """A stream that has waited for a stream or an event of another device sees the values that the work on that device wrote. This is
    tested with new streams and with the streams that are current on their devices. Each of the two devices in turn is current when the
    stream is made to wait."""
    from accelkit_conformance.oracle.queued_copies import check_waiting_for_another_device

    check_waiting_for_another_device(subject, way)


@check("full", requires=["streams", "events", "pinned_memory", "numbered_devices"], over=["query", "synchronize", "record_event"])
def methods_on_another_device(subject: Subject, way: str) -> None:
    """The methods of a stream act on this stream, even while another device is current. The work that was queued on the stream is done
    after ``synchronize``, after ``query`` has returned True, and after the event from ``record_event`` has completed according to its own
    ``query``. ``query`` returns True within 30 seconds. The methods change neither the current device nor its current stream. This is
    tested with a new stream and with the current stream of each of two devices, while each of the devices is current.
    """
    from accelkit_conformance.oracle.queued_copies import check_methods_on_another_device

    check_methods_on_another_device(subject, way)


@check("full", requires=["streams"])
def priorities_of_streams(subject: Subject) -> None:
    """Streams with the priorities -1 and 0 can be made current, and work on them gives the right results. The work consists of products of
    matrices and ``scaled_dot_product_attention`` in the forward and the backward pass, and of reading the results. Leaving such a stream
    restores the previous stream, and after ``synchronize``, ``query`` returns True. This is tested with ``torch.Stream`` and with
    ``Stream`` of the device's module. A priority other than 0 may also be refused with RuntimeError, ValueError or TypeError when the
    stream is created.
    """
    from accelkit_conformance.oracle.stream_objects import check_priorities

    check_priorities(subject)


@check("training", requires=["streams", "pinned_memory"], over=["on_its_stream", "on_another_stream"])
def backward_uses_the_forward_stream(subject: Subject, call: str) -> None:
    """The operators of a backward pass run on the stream on which their forward operators ran. If work is queued on this stream before
    ``backward``, ``torch.autograd.backward`` or ``torch.autograd.grad`` is called, the operators of the backward pass see the values that
    the work writes. This holds whether this stream or another stream is current when the function is called. In the second case, the
    gradient can be read on that other stream without an explicit wait.
    """
    from accelkit_conformance.oracle.queued_copies import check_stream_of_backward

    check_stream_of_backward(subject, call)


@check("training", requires=["streams"])
def memory_is_not_reused_too_early(subject: Subject) -> None:
    """If a tensor is freed after ``tensor.record_stream(stream)``, its memory is not reused until ``stream`` has finished reading the
    tensor."""
    import torch

    from accelkit_conformance.oracle.device_streams import make_stream, on_stream

    stream = make_stream(subject)
    for _ in range(10):
        block = torch.ones(1 << 18, device=subject.device)
        subject.synchronize()
        delay = torch.zeros(8, device=subject.device)
        _slow_producer(subject, stream, delay)
        with on_stream(subject, stream):
            total = block.sum()
        block.record_stream(stream)
        del block
        torch.full((1 << 18,), 7.0, device=subject.device)
        stream.synchronize()
        assert total.item() == 1 << 18, "the memory of a tensor was reused while a stream was reading it"


@check("smoke", requires=["streams"])
def streams_are_per_device(subject: Subject) -> None:
    """Entering a stream of another device makes that device and the stream current. Leaving the stream, even through an error, restores the
    previous device and the previous streams of both devices."""
    from accelkit_conformance.oracle.device_streams import check_streams_of_devices

    check_streams_of_devices(subject)


@check("training", requires=["streams", "numbered_devices"])
def streams_of_devices(subject: Subject) -> None:
    """Functions that take a device and return a stream return a stream of this device, even while another device is current. They change
    neither the current device nor the current streams. The functions are ``torch.Stream``, ``torch.accelerator.current_stream``, and
    ``Stream``, ``current_stream`` and ``default_stream`` of the device's module. The device is given as a ``torch.device``, as its name and
    as its index.

    A stream of any device can be made current while another device is current. The ways to do this are two contexts (a ``torch.Stream`` and
    ``stream`` of the device's module) and two functions (``set_stream`` of ``torch.accelerator`` and of the module). After a context has
    been left, even through an error, the current device and the current streams of both devices are the same as before. A way that the
    module lacks is left out.
    """
    from accelkit_conformance.oracle.streams_of_devices import check_functions, check_ways

    check_functions(subject)
    check_ways(subject)


@check("full", requires=["streams", "events", "pinned_memory"], over=["record", "record_event", "given_event", "wait", "foreign_wait"])
def recording_on_a_stream(subject: Subject, way: str) -> None:
    """``event.record(stream)``, ``stream.record_event()`` and ``stream.record_event(event)`` record an event on ``stream``, even if another
    stream is current. The event does not complete before the work that was queued earlier on ``stream``. A stream that waits for the event
    does not continue before the event completes. ``event.wait()`` makes the current stream wait for the event. The streams and the event
    are those of torch or those of the device's module. If the streams are of one kind and the event is of the other, the calls may also
    raise TypeError or RuntimeError. In the case ``foreign_wait``, the event is recorded without an argument while a stream of its own kind
    is current, and only ``wait_event`` of a stream of the other kind may raise one of these errors."""
    from accelkit_conformance.oracle.stream_objects import check_recording_on_a_stream

    check_recording_on_a_stream(subject, way)


@check("full", requires=["events", "pinned_memory"])
def events_cover_copies_to_the_host(subject: Subject) -> None:
    """An event that is recorded after a copy with ``non_blocking=True`` from the device to the host (``copy_`` into pinned memory, or
    ``to("cpu")``) is done only when the host has the values. ``synchronize`` waits for this, and ``query`` does not return True earlier."""
    from accelkit_conformance.oracle.queued_copies import check_events_after_copies

    check_events_after_copies(subject)


@check("full", requires=["events"])
def times_between_events(subject: Subject) -> None:
    """The times between twelve successive events are not negative. In three ranges of these events, the times add up to the time between
    the first and the last event of the range, to within 0.05 ms plus 2 % of that time. ``elapsed_time`` returns the same time when it is
    called again. The host need not wait for the two events themselves. After it has waited for the device, for their stream, for a result
    or for a later event, or has called ``query`` of the second event until it returned True, ``elapsed_time`` returns a time that is not
    negative, and returns the same time in another thread. ``elapsed_time`` raises RuntimeError or ValueError for an event that does not
    measure time or was not recorded.
    """
    from accelkit_conformance.oracle.stream_objects import check_times

    check_times(subject)


@check("full", requires=["streams"])
def streams_of_threads(subject: Subject) -> None:
    """If one thread enters a stream, the stream does not become current in another thread. The same is true if one thread makes a stream
    current with ``set_stream`` of the device's module or of ``torch.accelerator``. ``set_stream`` makes a stream current in the thread that
    calls it. A new stream does not equal the current stream.
    """
    from accelkit_conformance.oracle.stream_objects import check_streams_of_threads

    check_streams_of_threads(subject)


@check("full", requires=["streams", "pinned_memory"])
def reading_on_a_stream(subject: Subject) -> None:
    """Reading a tensor on a busy stream waits for the work that is queued on that stream, and gives the values that this work writes. The
    tensor is read with ``item``, ``tolist``, ``list``, ``cpu``, ``to``, ``copy_``, ``numpy``, ``float``, ``int``, ``bool``, ``nonzero``,
    ``unique``, ``equal``, ``repr`` and a boolean mask.
    """
    from accelkit_conformance.oracle.stream_objects import check_reading_on_a_stream

    check_reading_on_a_stream(subject)
