"""Every device has the type that the accelerator declares. Tensors are created on the requested device, and operators run there. An error
is raised if the index of the requested device does not exist, or if the inputs of an operator are on different devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from accelkit_conformance.checks import check
from accelkit_conformance.late_errors import raises
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


@check("smoke")
def check_device_agrees(subject: Subject) -> None:
    """The plugin's own ``check()`` reports that the device is usable."""
    answer = subject.accelerator.check()
    assert answer.is_usable, f"check() reports {answer.status}: {answer.reason}"


@check("smoke")
def devices_are_of_the_type(subject: Subject) -> None:
    """Every device of the accelerator has the device type that the accelerator's class declares, and no two devices are equal."""
    assert subject.devices, "there are no devices"
    for device in subject.devices:
        assert device.type == subject.device_type, f"a device of {subject.record.name} is {device}"
    assert len(set(subject.devices)) == len(subject.devices), f"a device is listed twice: {subject.devices}"


@check("smoke")
def string_round_trip(subject: Subject) -> None:
    """For each device, ``torch.device(str(device))`` equals ``device``."""
    import torch

    for device in subject.devices:
        assert torch.device(str(device)) == device


@check("smoke")
def tensors_know_their_device(subject: Subject) -> None:
    """On each device, ``to``, ``zeros_like``, ``new_zeros`` and factory functions with ``device=`` create tensors that are on that device.
    With ``device="cpu"``, ``ones_like`` and ``new_zeros`` of a tensor on the device create tensors on the CPU."""
    from accelkit_conformance.oracle.factories import check_devices_of_tensors

    check_devices_of_tensors(subject)


@check("training", requires=["numbered_devices"])
def factories_use_the_index(subject: Subject) -> None:
    """Every factory function with ``device=`` creates its tensor on the device that this argument names, even if another device is current.
    Values that are neither random nor uninitialised are the same as on the CPU."""
    from accelkit_conformance.oracle.factories import check_factories

    check_factories(subject)


@check("smoke")
def results_stay_on_the_device(subject: Subject) -> None:
    """The results of operators, methods, indexing, reductions, in-place operators and dtype conversions are on the device of the inputs."""
    import torch

    x = torch.rand(8, 8, device=subject.device)
    subject.assert_on_device(x + 1, x @ x, x.sum(), x[0], x.t(), x.relu_(), torch.cat([x, x]))
    if not subject.lacks("int64"):
        index = torch.tensor([1, 3]).to(subject.device)
        subject.assert_on_device(x[:, index], x.argmax(), x.nonzero(), *x.sort())
    if not (subject.lacks("int64") or subject.lacks("bool")):
        subject.assert_on_device(x.unique())
    if not subject.lacks("bool"):
        subject.assert_on_device(x > 0)
    if subject.capabilities.can("dtype.float16"):
        subject.assert_on_device(x.half())


@check("smoke", requires=["numbered_devices"])
def bad_index_raises(subject: Subject) -> None:
    """If a tensor is created on a device whose index does not exist and is then read, one of the two steps raises RuntimeError or
    AssertionError."""
    import torch

    are_numbered = torch.ones(1, device=torch.device(subject.device_type, 0)).device.index is not None  # torch's CPU has no index
    for index in (len(subject.devices) + 7, 99):
        device = torch.device(subject.device_type, index)
        with raises(subject, RuntimeError, AssertionError, doing=f"torch.ones on {device}", may_be_absent=not are_numbered):
            torch.ones(1, device=device).cpu()  # a lazy device creates the tensor when it is read


@check("smoke", requires=["numbered_devices"])
def current_device_is_kept(subject: Subject) -> None:
    """The context manager ``torch.<device_type>.device`` and the accelerator's ``setup_device`` change the current device. Leaving the
    context, even through an error, restores the previous device."""
    from accelkit_conformance.oracle.places import check_current_device

    check_current_device(subject)


@check("training", requires=["numbered_devices"])
def threads_have_their_own_device(subject: Subject) -> None:
    """A device that one thread makes current, with ``set_device`` or a context manager, does not become current in another thread."""
    from accelkit_conformance.oracle.places import check_devices_of_threads

    check_devices_of_threads(subject)


@check("training", requires=["numbered_devices"])
def failed_selections_keep_the_device(subject: Subject) -> None:
    """Selecting a device whose index does not exist raises RuntimeError, AssertionError or ValueError, and keeps the current device. The
    check uses ``set_device`` and ``device`` of the device's module and, if the device is torch's accelerator, also
    ``torch.accelerator``."""
    from accelkit_conformance.oracle.places import check_failed_selections

    check_failed_selections(subject)


@check("training", requires=["numbered_devices"])
def backward_is_on_its_device(subject: Subject) -> None:
    """Tensor hooks, post-accumulate-grad hooks and the ``backward`` of a custom function run with the device of the gradient as the current
    device, even if the backward pass was started while another device was current. The backward pass does not change the current device
    of the thread that started it.
    """
    from accelkit_conformance.oracle.places import check_devices_of_backward

    check_devices_of_backward(subject)


@check("training", requires=["numbered_devices"])
def missing_index_means_current(subject: Subject) -> None:
    """A device without an index, such as ``torch.device("cuda")``, means the current device. Factory functions create their tensors on the
    current device. ``to`` moves tensors and modules to the current device, from another device of the same type and from the CPU."""
    from accelkit_conformance.oracle.factories import check_devices_without_an_index

    check_devices_without_an_index(subject)


@check("smoke", requires=["numbered_devices"])
def devices_are_independent(subject: Subject) -> None:
    """Work on one device changes no tensor on another device, and results are on the device of the inputs, whichever device is current."""
    import torch

    other = subject.second_device()
    mine, theirs = torch.zeros(4, device=subject.device), torch.ones(4, device=other)
    mine += 5
    result = theirs * 2
    assert result.device == other, f"a result of {other} is on {result.device}"
    assert theirs.tolist() == [1.0] * 4
    assert result.tolist() == [2.0] * 4
    with subject.module.device(other):
        back = mine * 2
        subject.assert_on_device(back)
        theirs += 1
        assert back.tolist() == [10.0] * 4
    assert mine.tolist() == [5.0] * 4, f"work on {other} changed a tensor on {subject.device}"
    assert theirs.tolist() == [2.0] * 4


@check("smoke")
def count_is_steady(subject: Subject) -> None:
    """The accelerator's ``auto_device_count()`` equals ``torch.<device_type>.device_count()``, and using a device does not change this
    number."""
    count = subject.accelerator.auto_device_count()
    assert count == len(subject.devices)
    asked = subject.optional_function("device_count")
    if asked is not None:
        assert asked() == count, f"auto_device_count() returns {count}, but torch.{subject.device_type}.device_count() returns {asked()}"


@check("smoke")
def module_has_required_functions(subject: Subject) -> None:
    """``torch.<device_type>`` has the functions ``is_available``, ``device_count`` and ``current_device``, which torch's own code calls.
    ``is_available`` returns True."""
    for name in ("is_available", "device_count", "current_device"):
        subject.function(name)
    assert subject.function("is_available")() is True


@check("smoke")
def has_a_name(subject: Subject) -> None:
    """``torch.<device_type>.get_device_name`` returns a non-empty name. Without an argument, it returns the name of the current device. If
    the result of ``get_device_properties`` has a ``name``, the two names are equal. If the result has a ``total_memory``, this number is
    positive."""
    get_name, get_properties = (subject.optional_function(f"get_device_{what}") for what in ("name", "properties"))
    if get_name is None and get_properties is None:
        raise NotSupported(f"torch.{subject.device_type} has neither get_device_name nor get_device_properties")
    properties = None if get_properties is None else get_properties(subject.device)
    name = getattr(properties, "name", "") if get_name is None else get_name(subject.device)
    if get_name is not None:
        assert isinstance(name, str), f"the name of {subject.device} is {name!r}, which is not a string"
        assert name, f"the name of {subject.device} is empty"
        assert get_name() == name, f"get_device_name() returns {get_name()!r}, but the current device, {subject.device}, is {name!r}"
    named = getattr(properties, "name", name)
    assert named == name, f"get_device_name({subject.device}) returns {name!r}, but its properties have the name {named!r}"
    total = getattr(properties, "total_memory", 1)
    assert total > 0, f"the properties of {subject.device} say that it has {total} bytes of memory"


@check("smoke")
def synchronize_waits(subject: Subject) -> None:
    """After ``synchronize``, queued matrix products have the right result. ``synchronize`` can be called again on the idle device."""
    import torch

    x = torch.ones(256, 256, device=subject.device)
    for _ in range(5):
        x = x @ x / 256
    subject.synchronize()
    subject.synchronize()
    assert x.cpu().sum().item() == 256 * 256


@check("smoke")
def named_device_everywhere(subject: Subject) -> None:
    """The parameters, buffers and optimizer state of a module are on the device to which the module was moved. ``Runtime.device`` is the
    device selected for the Runtime, and ``prepare`` moves modules to it. ``with device:`` creates new tensors and modules on ``device``."""
    from accelkit_conformance.oracle.places import check_named_device

    check_named_device(subject)


@check("smoke")
def mixing_devices_raises(subject: Subject) -> None:
    """For a tensor on the device and a non-scalar CPU tensor, ``add``, ``mm`` and ``cat`` raise RuntimeError instead of copying one of the
    tensors. On the CPU, nothing is tested.
    """
    import torch

    if subject.device_type == "cpu":
        return
    here, there = torch.ones(3), torch.ones(3, device=subject.device)
    for name, call in {
        "add": lambda: there + here,
        "mm": lambda: there.view(1, 3) @ here.view(3, 1),
        "cat": lambda: torch.cat([there, here]),
    }.items():
        with raises(subject, RuntimeError, doing=f"{name} of a tensor on {subject.device} and one on the CPU"):
            call()


@check("smoke")
def scalars_come_back(subject: Subject) -> None:
    """``item``, ``tolist``, ``int``, ``float`` and ``bool`` wait for queued work, and return Python values of the right type."""
    import torch

    for name in ("float32", "int64"):
        if subject.lacks(name):
            continue
        x = torch.arange(5).to(getattr(torch, name)).to(subject.device) * 2
        assert x[3].item() == 6
        assert x.tolist() == [0, 2, 4, 6, 8]
        assert int(x.sum()) == 20
        assert float(x[4]) == 8.0
        assert [bool(x[0]), bool(x[1])] == [False, True]
        assert str(x[1].item()) == ("2" if name == "int64" else "2.0")
    if not subject.lacks("bool"):
        assert bool((x >= 0).all()) is True


@check("smoke")
def tensors_print(subject: Subject) -> None:
    """``repr`` of a tensor that contains 1.5 and NaN shows ``1.5`` and, unless the device is the CPU, the device type. ``repr`` also shows
    the same values as on the CPU for a tensor of 3,000 elements, an element, a slice, a strided, a transposed and an empty view of it, a
    tensor of integers, and a mask. The check needs float64, int64 and bool, which torch uses to format the values."""
    import torch

    subject.needs("float64", "int64", "bool")
    here = torch.arange(3000.0).view(1000, 3) / 8
    here[1, 1] = float("inf")
    views: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "a large tensor": lambda x: x, "a slice": lambda x: x[1:4], "an element": lambda x: x[2, 1], "a strided view": lambda x: x[:9:2, 1],
        "a transposed view": lambda x: x[:4].t(), "an empty view": lambda x: x[:0], "integers": lambda x: x[2:7].long(),
        "a mask": lambda x: x[:4] > 1,
    }  # fmt: skip
    for name, view in views.items():
        shown = view(here.to(subject.device))
        found, expected = repr(shown).replace(f", device='{shown.device}'", ""), repr(view(here))
        assert "".join(found.split()) == "".join(expected.split()), f"repr of {name} is {found}, not {expected}"
    text = repr(torch.tensor([1.5, float("nan")], device=subject.device))
    assert "1.5" in text
    assert subject.device_type == "cpu" or subject.device_type in text, text


@check("full", requires=["numbered_devices"])
def forms_of_a_device(subject: Subject) -> None:
    """Functions that describe a device, such as ``get_device_name``, return the same result for a ``torch.device``, its name and its index,
    even while another device is current. Without an argument, they describe the current device. ``set_device``, ``synchronize`` and the
    context manager ``device`` accept a device in each of these forms. If the device is torch's accelerator, ``torch.ones``, ``Tensor.to``,
    ``Module.to`` and functions of ``torch.accelerator`` are tested as well."""
    from accelkit_conformance.oracle.device_arguments import check_forms

    check_forms(subject)


@check("full", requires=["numbered_devices"])
def missing_devices(subject: Subject) -> None:
    """For a device that does not exist, functions that describe a device, such as ``get_device_name``, raise RuntimeError, AssertionError,
    ValueError or IndexError. So do ``Tensor.to``, ``zeros_like`` and seeding a ``torch.Generator``. Afterwards, the device still works."""
    from accelkit_conformance.oracle.device_arguments import check_missing_devices

    check_missing_devices(subject)


@check("full")
def default_device(subject: Subject) -> None:
    """Both after ``set_default_device(device)`` and inside ``with device:``, factory functions without ``device=`` create tensors on
    ``device``. After ``set_default_device(device)``, ``device="cpu"`` still means the CPU. ``set_default_device(None)`` makes the CPU the
    default again."""
    from accelkit_conformance.oracle.device_arguments import check_default_device

    check_default_device(subject)


@check("full")
def accelerator_functions_agree(subject: Subject) -> None:
    """If the device is torch's accelerator, ``torch.get_device_module`` returns the device's module, and ``torch.accelerator`` is available
    and has the right number of devices. With several devices, ``torch.accelerator`` and the device's module agree on the current device,
    whichever of the two selected it. Leaving ``torch.accelerator.device_index`` restores the previous device. If ``streams`` is
    declared, both also agree on the current stream.
    """
    from accelkit_conformance.oracle.device_arguments import check_accelerator_functions

    check_accelerator_functions(subject)


@check("full", seconds=180.0)
def first_calls(subject: Subject) -> None:
    """Any call can be the first one that uses the device in a process. In each of several new processes, a different call is the first to
    use the device, such as ``memory_allocated``, ``manual_seed``, ``current_stream``, ``torch.Generator``, ``pin_memory`` or
    ``torch.load``. If a call raises no error after the device has been used, it must not raise one as the first call either, and the device
    must work afterwards. Both calls must give results of the same type. Tensors must also have the same device, dtype and shape, must both
    be pinned or both be unpinned and, unless they are random, must have the same values; streams must have the same device, and current
    streams must be the same; generators must have the same device and initial seed; and functions that return a constant, such as
    ``device_count`` or ``is_bf16_supported``, must return the same value. ``current_stream`` and the functions that report memory are also
    called with the index and with the name of the device. Each call must end within 20 seconds. In one process, four threads use the device
    first, at the same time, and get the right results. In each of three other processes, 15 threads call 15 different operators, such as
    ``tanh`` and ``log10``, for the first time, at the same time, and get the right results. After ``is_available`` and ``device_count`` of
    the device's module and of ``torch.accelerator`` have been called, a forked process can use the device, or raises RuntimeError; it
    neither hangs nor crashes.

    The new processes are forked from a process that has loaded the plugin. If loading the plugin initialises the driver, or a forked
    process cannot use the device, the result is ``unsupported``.
    """
    from accelkit_conformance.oracle.first_calls import check_first_calls

    check_first_calls(subject)


@check("full", requires=["dtype.float32"], seconds=120.0)
def concurrent_threads(subject: Subject) -> None:
    """Four threads use the device at the same time, each on its own stream if the device has streams. In twelve rounds, they create,
    compute, index, sort, copy, read and free tensors, draw random numbers with generators of their own, and run backward passes. The
    results are the same as in the main thread, up to a relative error of 1e-4. If the capability ``memory_statistics`` is declared, the
    number of allocated bytes is not larger after the last round than after the first."""
    from accelkit_conformance.oracle.concurrent_threads import check_threads

    check_threads(subject)
