"""Checks of functions that pass a tensor through DLPack to a device, and of their arguments ``device`` and ``copy``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import DLDeviceType, from_dlpack, to_dlpack

from accelkit_conformance.late_errors import raises
from accelkit_conformance.profiles.operators import DTYPES
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LACKING = ("Unknown device type", "Cannot pack tensors on", "Unsupported device_type", "without XPU data", "Can't export to dlpack")
"""Parts of the error messages that torch raises if it does not support DLPack, or some use of DLPack, for a device type."""
_CPU = torch.device("cpu")
_COPY = (None, True, False)
_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a whole tensor": lambda x: x,
    "a slice with a step": lambda x: x[1:, ::2],
    "a transposed tensor": lambda x: x.t(),
    "a 0-d tensor": lambda x: x[2, 1],
    "an empty tensor": lambda x: x[:0],
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A call that passes a tensor through DLPack.

    Attributes:
        name: The call as a Python expression, for messages.
        function: A function that takes a tensor and makes the call.
        copy: The argument ``copy`` of the call.
        has_index: False if the call names a device without its index. torch considers such a device different from the same device
            with its index, and refuses ``copy=False``.
    """

    name: str
    function: Callable[[torch.Tensor], Any]
    copy: bool | None = None
    has_index: bool = True


def check_dlpack_devices(subject: Subject) -> None:
    """Check that results are on the requested device, have the right values, and share memory with the source or are copies of it.

    Tensors are passed from and to the CPU, the device under test and, if there is one, a second device. Failures are recorded in the
    subject.

    Raises:
        NotSupported: If torch does not support DLPack for devices of this type.
    """
    make_current = subject.optional_function("device") if subject.capabilities.can("numbered_devices") else None
    others = [subject.second_device()] if make_current is not None and len(subject.devices) > 1 else []
    devices = list(dict.fromkeys([subject.device, *others, _CPU]))
    is_any_supported = False
    for source, target in itertools.product(devices, devices):
        if subject.device != _CPU and source == target == _CPU:
            continue
        with contextlib.nullcontext() if make_current is None or source == _CPU else make_current(source):
            for calls in _groups(subject, source, target):
                if calls and _is_supported(calls[0], source):
                    is_any_supported = True
                    for call in calls:
                        with subject.sample(f"{call.name} of a tensor on {source}", {"call": call.name}):
                            _check(subject, call, source, target)
    if not is_any_supported:
        raise NotSupported(f"torch does not support DLPack for devices of type {subject.device_type}")


def _is_supported(call: _Call, source: torch.device) -> bool:
    """Return whether torch supports DLPack calls like ``call`` for tensors on ``source``. ``call`` must be the simplest of these calls."""
    try:
        call.function(torch.ones(2, device=source))
    except (BufferError, NotImplementedError, RuntimeError, ValueError) as error:
        return not any(text in str(error) for text in _LACKING)
    return True


def _groups(subject: Subject, source: torch.device, target: torch.device) -> Iterator[list[_Call]]:
    """Yield lists of calls that pass a tensor from ``source`` to ``target`` while ``source`` is current.

    torch supports either all calls in a list or none of them. The first call in each list passes the device with its index (if it has
    one) and ``copy=None``.
    """
    forms: list[Any] = [target, str(target)]
    if target.index is not None and target == (subject.device if source == _CPU else source):
        forms += [torch.device(target.type), target.type]

    def calls(text: str, function: Callable[..., Any]) -> list[_Call]:
        options: list[dict[str, Any]] = [{"device": form, "copy": copy} for form in forms for copy in _COPY]
        if source == target:
            options += [{"copy": copy} for copy in _COPY]
        found = []
        for given in options:
            arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
            has_index = torch.device(given.get("device", target)).index == target.index
            found.append(_Call(f"{text}, {arguments})", functools.partial(function, **given), given["copy"], has_index))
        return found

    yield calls("torch.from_dlpack(x", torch.from_dlpack)
    yield calls("torch.asarray(to_dlpack(x)", lambda x, **options: torch.asarray(to_dlpack(x), **options))
    yield _exports(source, target)


def _exports(source: torch.device, target: torch.device) -> list[_Call]:
    """Return calls to ``Tensor.__dlpack__`` whose capsules are passed to ``torch.utils.dlpack.from_dlpack``."""
    found, place = [], _dlpack_device(target)
    choices: list[Any] = [] if place is None else [place, None] if source == target else [place]
    for chosen, copy, version in itertools.product(choices, _COPY, (None, (1, 0))):
        options = {"dl_device": chosen, "copy": copy, "max_version": version}
        arguments = ", ".join(f"{name}={value}" for name, value in options.items())
        function = functools.partial(_export, **options)
        found.append(_Call(f"from_dlpack(x.__dlpack__({arguments}))", function, copy))
    return found


def _export(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return from_dlpack(x.__dlpack__(**options))


def _dlpack_device(device: torch.device) -> tuple[Any, int] | None:
    """Return the device in the form of DLPack (its type and its index), or None if torch does not support DLPack for this device.

    For a device type that was registered for ``privateuse1`` under its own name, torch uses the type ``kDLExtDev``, but
    ``__dlpack_device__`` raises a ValueError.
    """
    x = torch.ones(1, device=device)
    try:
        return x.__dlpack_device__()
    except ValueError:
        return (DLDeviceType.kDLExtDev, device.index or 0) if _is_supported(_Call("", to_dlpack), device) else None


def _check(subject: Subject, call: _Call, source: torch.device, target: torch.device) -> None:
    """Make a call with several tensors on ``source``, and check the results."""
    is_same = source == target
    if call.copy is False and is_same and not call.has_index:
        return
    tensors = {name: view(torch.arange(12.0).view(4, 3).to(source)) for name, view in _VIEWS.items()}
    if call.copy is None:
        numbers = torch.arange(6) % 2
        tensors |= {name: numbers.to(getattr(torch, name)).to(source) for name in DTYPES if not subject.lacks(name)}
    for name, x in tensors.items():
        if call.copy is False and not is_same:
            with raises(subject, BufferError, RuntimeError, ValueError, doing=f"{call.name}, which would have to copy,"):
                call.function(x)
            continue
        before, found = x.cpu().clone(), call.function(x)
        assert found.device == target, f"the result for {name} is on {found.device}, not on {target}"
        assert found.dtype == x.dtype, f"the result for {name} is {found.dtype}, not {x.dtype}"
        assert found.shape == x.shape, f"the result for {name} has the shape {list(found.shape)}, not {list(x.shape)}"
        assert torch.equal(found.cpu(), before), f"the result for {name} is {found.tolist()}, not {before.tolist()}"
        found.fill_(1)
        after, is_shared = x.cpu(), is_same and call.copy is not True
        expected = found.cpu() if is_shared else before
        assert torch.equal(after, expected), f"the result for {name} {'shares no' if is_shared else 'shares'} memory with its source"
