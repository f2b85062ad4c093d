"""Streams and events of the device: those of torch itself or, for a device that is not torch's accelerator, those of the device's
module."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psutil
import torch

from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def make_stream(subject: Subject, device: torch.device | None = None, **options: int) -> Any:
    """Return a new stream of ``device``, by default the device under test. ``options`` are keyword arguments of ``torch.Stream``, such as
    ``priority``."""
    device = device or subject.device
    return (torch.Stream if is_accelerator(subject) else subject.function("Stream"))(device=device, **options)


def current_stream(subject: Subject, device: torch.device | None = None) -> Any:
    """Return the current stream of ``device``, by default the device under test."""
    device = device or subject.device
    return torch.accelerator.current_stream(device) if is_accelerator(subject) else subject.function("current_stream")(device)


def on_stream(subject: Subject, stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager that makes ``stream`` current."""
    return stream if is_accelerator(subject) else subject.function("stream")(stream)  # type: ignore[no-any-return]


def ways_to_enter(subject: Subject) -> list[tuple[Callable[..., Any], Callable[[Any], contextlib.AbstractContextManager[Any]]]]:
    """Return pairs of functions: the first creates a stream of the device under test, possibly with options, and the second returns a
    context that makes it current.

    One pair is ``make_stream`` and ``on_stream``. If the device's module has ``Stream`` and ``stream``, they are another pair.
    """
    ways: list[tuple[Callable[..., Any], Callable[[Any], contextlib.AbstractContextManager[Any]]]] = [
        (functools.partial(make_stream, subject), lambda stream: on_stream(subject, stream))
    ]
    cls, context = subject.optional_function("Stream"), subject.optional_function("stream")
    if cls is not None and context is not None:
        ways.append((functools.partial(cls, device=subject.device), context))
    return ways


def check_contexts(subject: Subject) -> None:
    """Check that entering a stream makes it current, and that leaving it, even through an error, restores the previous stream.

    Raises:
        AssertionError: If the entered stream is not current inside the context, if it is the previous stream itself, or if the previous
            stream is not current after the context.
        NotSupported: If the plugin does not declare the capability ``streams``, and the device has only one stream.
    """
    before = identity(current_stream(subject))
    for make, enter in ways_to_enter(subject):
        stream = make()
        if identity(stream) == before and subject.capabilities["streams"] == "undeclared":
            raise NotSupported("streams: undeclared, and a new stream is the current one, so the device has only one")
        for error in (None, KeyError):
            how = f"leaving a stream{' through an error' if error else ''}"
            try:
                with enter(stream):
                    assert identity(current_stream(subject)) == identity(stream), "a stream that was entered is not current"
                    assert identity(current_stream(subject)) != before, "the stream that was current before is still current"
                    if error:
                        raise error
            except KeyError:
                pass
            assert identity(current_stream(subject)) == before, f"{how} did not restore the previous stream"


def make_event(subject: Subject, **options: bool) -> Any:
    """Return a new event. ``options`` are those of ``torch.Event``, such as ``enable_timing``."""
    return torch.Event(subject.device, **options) if is_accelerator(subject) else subject.function("Event")(**options)


def ways_to_make_events(subject: Subject) -> list[Callable[[], Any]]:
    """Return functions that create an event: ``make_event`` and, if the device's module has it, ``Event`` of the module.

    The order is that of ``ways_to_enter``: events and streams at the same index belong together.
    """
    cls = subject.optional_function("Event")
    return [lambda: make_event(subject), *([cls] if cls is not None else [])]


def elapsed(start: Any, end: Any) -> float:
    """Return the milliseconds between two recorded events.

    Raises:
        NotSupported: If the device's events do not measure time.
    """
    try:
        return float(start.elapsed_time(end))
    except RuntimeError as error:
        if "Backend doesn't support elapsedTime" not in str(error):
            raise
        raise NotSupported("the device's events do not measure time") from error


@functools.cache
def num_slow_products(subject: Subject) -> int:
    """Return how often ``slow_product`` must be repeated so that the device is busy for about 30 ms: at least 1, at most 10 times.

    A simulated device may need 100 ms for one product, and a GPU much less than the time in which the host queues ten of them.
    """
    a = slow_product(torch.rand(512, 512, device=subject.device))  # compiles what the device compiles when it is first used
    subject.synchronize()
    began = time.perf_counter()
    slow_product(a)
    subject.synchronize()
    return min(10, max(1, round(0.03 / (time.perf_counter() - began))))


def slow_product(a: torch.Tensor) -> torch.Tensor:
    """Return the product of a square matrix with itself, scaled such that the product can be repeated."""
    return (a @ a).softmax(-1)


def is_accelerator(subject: Subject) -> bool:
    """Return whether ``torch.accelerator`` refers to the device type under test."""
    current = torch.accelerator.current_accelerator()
    return current is not None and current.type == subject.device_type


def check_handles(subject: Subject) -> None:
    """Check that streams and events release their open files, threads and memory when they are no longer used.

    Raises:
        AssertionError: If, after 4000 streams and events have been used, at least 50 more files are open than before, at least 50 more
            threads are running, or at least 32 MiB more memory is in use.
    """
    process = psutil.Process()
    x = torch.ones(8, device=subject.device)

    def use(count: int) -> None:
        for _ in range(count):
            stream = make_stream(subject)
            with on_stream(subject, stream):
                event = make_event(subject)
                event.record()
            event.synchronize()
        gc.collect()
        subject.synchronize()

    def counts() -> tuple[int, int, int]:
        files = process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
        return files, process.num_threads(), process.memory_info().rss

    use(200)  # pools may grow at first
    files, threads, resident = counts()
    use(4000)
    files, threads, resident = (after - before for after, before in zip(counts(), (files, threads, resident), strict=True))
    assert files < 50, f"{files} files stay open after 4000 streams and events"
    assert threads < 50, f"{threads} threads are left after 4000 streams and events"
    assert resident < 32 << 20, f"{resident >> 20} MiB of memory are left after 4000 streams and events"
    assert x.sum().item() == 8


def check_nested_contexts(subject: Subject) -> None:
    """Check that a stream can be entered again while its context is active, and that leaving a context restores the previous stream.

    Raises:
        AssertionError: If the wrong stream is current inside a context or after it.
        NotSupported: If the plugin does not declare the capability ``streams`` and the device has fewer than three streams, or if the
            installed torch cannot enter a stream again while its context is active.
    """
    before, num_tested = current_stream(subject), 0
    for make, enter in ways_to_enter(subject):
        one, other = make(), make()
        if len({identity(stream) for stream in (one, other, before)}) < 3 and subject.capabilities["streams"] == "undeclared":
            raise NotSupported("streams: undeclared, and new streams are equal to the current one")
        try:
            for streams in ((one, one), (one, one, one), (one, other, one), (one, other, one, other)):
                _enter_in_turn(subject, enter, streams)
        except RuntimeError as error:
            if "Stream's context should not be initialized" not in str(error):
                raise
        else:
            num_tested += 1
    if not num_tested:
        raise NotSupported(f"torch {torch.__version__} cannot enter a stream again in its own context")


def _enter_in_turn(subject: Subject, enter: Callable[[Any], contextlib.AbstractContextManager[Any]], streams: Sequence[Any]) -> None:
    """Enter the contexts of ``streams``, each inside the previous one, and check the current stream before and after leaving each
    context."""
    if not streams:
        return
    before = identity(current_stream(subject))
    with enter(streams[0]):
        assert identity(current_stream(subject)) == identity(streams[0]), "a stream that was entered is not current"
        _enter_in_turn(subject, enter, streams[1:])
    assert identity(current_stream(subject)) == before, "leaving a stream that was entered again did not restore the previous stream"


def identity(stream: Any) -> Any:
    """Return a value that is the same for equal streams, even if one is an object of the device's module and the other an object of
    torch."""
    return getattr(stream, "stream_id", stream)


def check_streams_of_devices(subject: Subject) -> None:
    """Check that entering a stream of another device makes the stream and its device current, and that leaving it restores the previous
    ones.

    Raises:
        AssertionError: If the wrong device or stream is current.
        NotSupported: If there is only one device.
    """
    devices = (subject.device, subject.second_device())
    before = [current_stream(subject, device) for device in devices]
    own, stream = (make_stream(subject, device) for device in devices)
    for error in (None, KeyError):
        try:
            with on_stream(subject, own), on_stream(subject, stream):
                assert torch.empty(1, device=subject.device_type).device == devices[1]
                for device, entered in zip(devices, (own, stream), strict=True):
                    assert current_stream(subject, device) == entered, f"the stream of {device} that was entered is not current"
                if error is not None:
                    raise error
        except KeyError:
            pass
        assert torch.empty(1, device=subject.device_type).device == subject.device
        for device, stream_before in zip(devices, before, strict=True):
            assert current_stream(subject, device) == stream_before, f"the previous stream of {device} is not current again"
