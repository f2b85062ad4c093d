"""Checks of streams of several devices: functions that take a device and return one of its streams, and ways to make a stream current."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.device_streams import current_stream, identity, is_accelerator, make_stream, on_stream

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Functions = Mapping[str, Callable[[Any], Any]]


def _forms(device: torch.device) -> Iterator[Any]:
    """Yield the forms in which a device can be passed to a function."""
    yield from (device, str(device), device.index) if device.index is not None else (device, str(device))


def _describe(stream: Any) -> str:
    """Return the id and the device of a stream. The ids of streams of different devices may be equal."""
    return f"stream {identity(stream)} of {stream.device}"


def _current(subject: Subject, devices: Sequence[torch.device]) -> dict[str, str]:
    """Return each device's current stream, which is read by a call without arguments while the device is current."""
    get = torch.accelerator.current_stream if is_accelerator(subject) else subject.function("current_stream")
    found = {}
    for device in devices:
        with subject.module.device(device):
            found[str(device)] = _describe(get())
    return found


def check_functions(subject: Subject) -> None:
    """Check that ``current_stream``, ``default_stream`` and ``Stream`` return a stream of the device that they are called with.

    ``Stream`` returns a new stream. No function may change the current device or the current streams. Each function is called while the
    given device or another device is current: first with the streams that were current before the check, and then with new current
    streams. Failures are recorded in the subject.
    """
    devices = subject.devices[:2]
    own, other = make_stream(subject, devices[0]), make_stream(subject, devices[-1])
    _check_functions(subject, devices, "no stream was entered")
    with on_stream(subject, own), on_stream(subject, other):
        _check_functions(subject, devices, "new streams were entered")


def _check_functions(subject: Subject, devices: Sequence[torch.device], situation: str) -> None:
    module = subject.module
    streams = _current(subject, devices)
    for (name, function), device, current in itertools.product(_functions(subject).items(), devices, devices):
        for form in _forms(device):
            with subject.sample(f"{name}({form!r}) while {current} is current, and {situation}", {"name": name}):
                with module.device(device):
                    alone = function(device)
                with module.device(current):
                    found, index = function(form), module.current_device()
                assert found.device == device, f"returned a stream of {found.device}, not of {device}"
                assert index == current.index, f"made device {index} current"
                if name.endswith("current_stream"):
                    expected = streams[str(device)]
                    assert _describe(found) == expected, f"returned {_describe(found)}, but {expected} is current"
                elif name.endswith("default_stream"):
                    assert _describe(found) == _describe(alone), (
                        f"returned {_describe(found)}, but {_describe(alone)} while {device} is current"
                    )
                after = _current(subject, devices)
                assert after == streams, f"changed the current streams from {streams} to {after}"


def _functions(subject: Subject) -> _Functions:
    """Return the functions that take a device and return a stream, by name.

    They are those of the device's module and, if the device is torch's current accelerator, those of torch.
    """
    found: dict[str, Callable[[Any], Any]] = {}
    for name in ("current_stream", "default_stream"):
        if (function := subject.optional_function(name)) is not None:
            found[f"torch.{subject.device_type}.{name}"] = function
    if (cls := subject.optional_function("Stream")) is not None:
        found[f"torch.{subject.device_type}.Stream"] = lambda device: cls(device=device)
    if is_accelerator(subject):
        found["torch.accelerator.current_stream"] = torch.accelerator.current_stream
        found["torch.Stream"] = lambda device: torch.Stream(device=device)
    return found


def check_ways(subject: Subject) -> None:
    """Check that a stream can be made current while another device is current, and that the previous streams can be restored.

    Streams are made current by contexts, which are left normally or through an error, and by ``set_stream``. Failures are recorded in the
    subject.
    """
    devices = subject.devices[:2]
    errors: tuple[type[Exception] | None, ...] = (None, KeyError)
    for current, device in itertools.product(devices, devices):
        for (name, enter), error in itertools.product(_contexts(subject).items(), errors):
            how = f"{name} of {device}, left {'through an error' if error else 'normally'}"
            with subject.sample(f"{how}, while {current} is current", {"name": name}), subject.module.device(current):
                _check_context(subject, enter(device), device, error)
        for name, select in _setters(subject).items():
            with subject.sample(f"{name} of {device} while {current} is current", {"name": name}), subject.module.device(current):
                _check_setter(subject, name, select, device)


def _contexts(subject: Subject) -> Mapping[str, Callable[[torch.device], tuple[Any, AbstractContextManager[Any]]]]:
    """Return functions, by name. Each creates a stream of a given device, and returns the stream and a context that makes it current."""

    def of_torch(device: torch.device) -> tuple[Any, AbstractContextManager[Any]]:
        stream = torch.Stream(device=device)
        return stream, stream

    def of_module(device: torch.device) -> tuple[Any, AbstractContextManager[Any]]:
        stream = subject.function("Stream")(device=device)
        return stream, subject.function("stream")(stream)

    has_own = all(subject.optional_function(name) is not None for name in ("Stream", "stream"))
    return {
        **({"torch.Stream": of_torch} if is_accelerator(subject) else {}),
        **({f"torch.{subject.device_type}.stream": of_module} if has_own else {}),
    }


def _check_context(
    subject: Subject, entered: tuple[Any, AbstractContextManager[Any]], device: torch.device, error: type[Exception] | None
) -> None:
    devices, module = subject.devices[:2], subject.module
    index, before = module.current_device(), _current(subject, devices)
    stream, context = entered
    try:
        with context:
            inside, inside_index = _current(subject, devices), module.current_device()
            if error is not None:
                raise error
    except KeyError:
        pass
    after, after_index = _current(subject, devices), module.current_device()
    expected = {**before, str(device): _describe(stream)}
    assert inside == expected, f"in the context, the current streams are {inside}, not {expected}"
    assert inside_index == device.index, f"in the context, device {inside_index} is current, not {device.index}"
    assert after == before, f"after the context, the current streams are {after}, not {before}"
    assert after_index == index, f"after the context, device {after_index} is current, not {index}"


def _setters(subject: Subject) -> _Functions:
    """Return the functions that make a stream current, by name."""
    own = subject.optional_function("set_stream")
    return {
        **({"torch.accelerator.set_stream": torch.accelerator.set_stream} if is_accelerator(subject) else {}),
        **({f"torch.{subject.device_type}.set_stream": own} if own is not None else {}),
    }


def _check_setter(subject: Subject, name: str, select: Callable[[Any], Any], device: torch.device) -> None:
    """Check that ``select`` makes a stream of ``device`` current, changes no other device's stream, and can restore the previous stream."""
    devices, module = subject.devices[:2], subject.module
    index, before = module.current_device(), _current(subject, devices)
    previous, stream = current_stream(subject, device), make_stream(subject, device)
    try:
        select(stream)
        set_index, found = module.current_device(), _current(subject, devices)
    finally:
        select(previous)
        module.set_device(index)
    after, expected = _current(subject, devices), {**before, str(device): _describe(stream)}
    assert found == expected, f"after {name}, the current streams are {found}, not {expected}"
    if name.startswith("torch.accelerator"):
        assert set_index == device.index, f"after {name}, device {set_index} is current, not {device.index}"
    assert after == before, f"after {name} with the previous stream, the current streams are {after}, not {before}"
