"""Checks of functions that take a device as an argument, in the form of a ``torch.device``, a name or an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle.device_streams import is_accelerator
from accelkit_conformance.oracle.factories import FLOATS, INTEGERS
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_FUNCTIONS = (
    "get_device_name", "get_device_properties", "current_stream", "default_stream", "memory_allocated",
    "max_memory_allocated", "get_rng_state",
)  # fmt: skip
"""Functions of a device's module that take a device and return something that describes it."""


def _functions(subject: Subject) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions to test, each with its name: functions of the device's module and, if the device is torch's current accelerator,
    functions of ``torch.accelerator``."""
    for name in _FUNCTIONS:
        function = subject.optional_function(name)
        if function is not None:
            yield f"torch.{subject.device_type}.{name}", function
    if is_accelerator(subject):
        for name in ("current_stream", "memory_allocated", "max_memory_allocated"):
            if hasattr(torch.accelerator, name):
                yield f"torch.accelerator.{name}", getattr(torch.accelerator, name)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other) or repr(one) == repr(other)


def check_forms(subject: Subject) -> None:
    """Check that functions treat a ``torch.device``, its name and its index alike, and that they use the current device if none is given.

    Raises:
        AssertionError: If the result of a function depends on the form of its argument, or if a function selects or uses the wrong device.
        NotSupported: If there is only one device.
    """
    module, second = subject.module, subject.second_device()
    held = [torch.ones(1 << 20, device=subject.device), torch.rand(1 << 18, device=second), torch.rand(3, device=second)]
    for device in (subject.device, second):
        other = second if device == subject.device else subject.device
        for name, function in _functions(subject):
            with subject.sample(f"{name} of {device}", {"name": name}):
                try:
                    expected = function(device)
                except NotImplementedError:
                    continue
                forms = {"its name": str(device), "its index": device.index}
                for form, argument in forms.items():
                    with module.device(other):
                        found = function(argument)
                    assert _same(found, expected), f"{name} with {form}, {argument!r}, returns {found!r}, not {expected!r}"
                with module.device(device):
                    found = function()
                assert _same(found, expected), f"{name}() while {device} is current returns {found!r}, but with the device {expected!r}"
        found_index = torch.ones(2, device=device).get_device()
        assert found_index == device.index, f"get_device() of a tensor on {device} is {found_index}"
        for form in (device, str(device), device.index):
            with module.device(other):
                module.synchronize(form) if hasattr(module, "synchronize") else None
                current = module.current_device()
                assert current == other.index, f"synchronize({form!r}) made device {current} current"
                with module.device(form):
                    current = module.current_device()
                    made = torch.ones(2, device=subject.device_type).device
                assert current == device.index, f"in the context device({form!r}), device {current} is current"
                assert made == device, f"in the context device({form!r}), a tensor without an index is on {made}"
                _check_set_device(subject, form, device)
    del held


def _check_set_device(subject: Subject, form: Any, device: torch.device) -> None:
    ways: dict[str, Callable[[Any], Any]] = {"set_device": subject.module.set_device}
    if is_accelerator(subject):
        ways["torch.accelerator.set_device_index"] = torch.accelerator.set_device_index
        with subject.sample(f"tensors with device={form!r}", {}):
            for what, made in {
                "ones": torch.ones(2, device=form),
                "to": torch.ones(2).to(form),
                "Linear": torch.nn.Linear(2, 2).to(form).weight,
            }.items():
                assert made.device == device, f"{what} with the device {form!r} is on {made.device}"
    before = subject.module.current_device()
    for way, select in ways.items():
        select(form)
        found = subject.module.current_device()
        subject.module.set_device(before)
        assert found == device.index, f"after {way}({form!r}), device {found} is current"


def check_missing_devices(subject: Subject) -> None:
    """Check that functions raise an error for a device that does not exist, and that the device under test still works after these errors.

    A failure is recorded in the subject if a function raises no error, or raises anything but a RuntimeError, AssertionError, ValueError or
    IndexError.

    Raises:
        AssertionError: If the device under test does not work after the errors.
    """
    missing = len(subject.devices) + 7
    for name, function in _functions(subject):
        for form in (missing, torch.device(subject.device_type, missing)):
            with (
                subject.sample(f"{name}({form!r})", {"name": name}),
                raises(subject, RuntimeError, AssertionError, ValueError, IndexError, doing=f"{name}({form!r})"),
            ):
                function(form)
    for name, call in {
        "to": lambda: torch.ones(2).to(torch.device(subject.device_type, missing)),
        "Generator": lambda: torch.Generator(device=torch.device(subject.device_type, missing)).manual_seed(1),
        "zeros_like": lambda: torch.zeros_like(torch.ones(2), device=torch.device(subject.device_type, missing)),
        "to of a tensor on the device": lambda: torch.ones(2, device=subject.device).to(torch.device(subject.device_type, missing)),
    }.items():
        with (
            subject.sample(f"{name} of a missing device", {"name": name}),
            raises(subject, RuntimeError, AssertionError, ValueError, IndexError, doing=f"{name} of device {missing}"),
        ):
            call()
    assert (torch.ones(3, device=subject.device) + 1).tolist() == [2.0] * 3, "the device does not work after the error"


def check_default_device(subject: Subject) -> None:
    """Check that functions called with ``device=None`` create tensors on the default device, and on the CPU after the default device has
    been reset. With ``device="cpu"``, they must create tensors on the CPU even if another device is the default.

    A failure is recorded in the subject if a tensor is on another device.
    """
    makers = {
        name: make for name, make in FLOATS.items() if "_like" not in name and not name.startswith(("new_", "scalar_tensor", "normal"))
    }
    makers |= {} if subject.lacks("int64") else {name: make for name, make in INTEGERS.items() if "_like" not in name}
    no_device: Any = None
    for device in (subject.device, str(subject.device)):
        for name, make in makers.items():
            with subject.sample(f"{name} with the default device {device!r}", {"name": name}):
                with torch.device(device):
                    subject.assert_on_device(make(no_device))
                torch.set_default_device(device)
                try:
                    subject.assert_on_device(make(no_device), torch.nn.Linear(2, 2).weight)
                    assert make(torch.device("cpu")).device.type == "cpu", f"{name} with device='cpu' is not on the CPU"
                finally:
                    torch.set_default_device(None)
                assert make(no_device).device.type == "cpu", f"after the default device was reset, {name} is not on the CPU"


def check_accelerator_functions(subject: Subject) -> None:
    """Check that ``torch.accelerator`` agrees with the device's module, and that ``torch.get_device_module`` returns this module.

    Raises:
        AssertionError: If another module is returned, if ``torch.accelerator`` is not available, or if it disagrees with the module about
            the number of devices, the current device or the current stream.
        NotSupported: If the device is not torch's accelerator.
    """
    if not is_accelerator(subject):
        raise NotSupported("the device is not torch's accelerator")
    module = subject.module
    assert torch.get_device_module(subject.device) is module, "get_device_module returns another module"
    assert torch.get_device_module(subject.device_type) is module, "get_device_module of a name returns another module"
    assert torch.accelerator.is_available(), "torch.accelerator.is_available() is False"
    count = torch.accelerator.device_count()
    assert count == len(subject.devices), f"torch.accelerator.device_count() is {count}, but there are {len(subject.devices)} devices"
    for device in subject.devices:
        if len(subject.devices) == 1:
            continue
        with module.device(device):
            index = torch.accelerator.current_device_index()
            assert index == device.index, f"while {device} is current, torch.accelerator.current_device_index() is {index}"
        torch.accelerator.set_device_index(device)
        index = module.current_device()
        module.set_device(subject.device)
        assert index == device.index, f"after torch.accelerator.set_device_index({device}), device {index} is current"
        if hasattr(torch.accelerator, "device_index"):
            with torch.accelerator.device_index(device.index):
                index = module.current_device()
            assert index == device.index, f"in torch.accelerator.device_index({device.index}), device {index} is current"
            assert module.current_device() == subject.device.index, "leaving torch.accelerator.device_index did not restore the device"
        torch.accelerator.synchronize(device)
    stream = subject.optional_function("current_stream")
    if stream is not None and subject.capabilities.can("streams"):
        ids = [one(subject.device).stream_id for one in (stream, torch.accelerator.current_stream)]
        assert ids[0] == ids[1], f"the current stream is {ids[0]} for the module, and {ids[1]} for torch.accelerator"
