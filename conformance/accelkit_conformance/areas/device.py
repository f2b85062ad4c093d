"""The device is there, has the name that it says, and computes where it was asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.checks import check
from accelkit_conformance.subject import raises

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("smoke")
def check_agrees(subject: Subject) -> None:
    """The plugin's own ``check()`` says usable."""
    answer = subject.accelerator.check()
    assert answer.is_usable, f"check() says {answer.status}: {answer.reason}"


@check("smoke")
def devices_are_of_the_type(subject: Subject) -> None:
    """Every device of the accelerator is of the type that the class declares, and no two are the same."""
    assert subject.devices, "there are no devices"
    for device in subject.devices:
        assert device.type == subject.device_type, f"a device of {subject.record.name} is {device}"
    assert len(set(subject.devices)) == len(subject.devices), f"a device is named twice: {subject.devices}"


@check("smoke")
def string_round_trip(subject: Subject) -> None:
    """``torch.device(str(device))`` is the device again."""
    import torch

    for device in subject.devices:
        assert torch.device(str(device)) == device


@check("smoke")
def tensors_know_their_device(subject: Subject) -> None:
    """A tensor made on each device is on it, by every way of making one."""
    import torch

    for device in subject.devices:
        made = {
            "empty": torch.empty(2, device=device),
            "zeros": torch.zeros(2, device=device),
            "tensor": torch.tensor([1.0, 2.0], device=device),
            "arange": torch.arange(3, device=device),
            "randn": torch.randn(2, device=device),
            "to": torch.ones(2).to(device),
            "zeros_like": torch.zeros_like(torch.ones(2), device=device),
            "new_zeros": torch.zeros(1, device=device).new_zeros(3),
        }
        for name, tensor in made.items():
            assert tensor.device == device, f"torch.{name} on {device} made a tensor on {tensor.device}"


@check("smoke")
def results_stay(subject: Subject) -> None:
    """What is computed from tensors of the device is on the device: operators, methods, indexing, reductions, in-place."""
    import torch

    x = torch.rand(8, 8, device=subject.device)
    index = torch.tensor([1, 3], device=subject.device)
    results = (x + 1, x @ x, x.sum(), x[0], x[:, index], x.t(), x.relu_(), x.argmax(), x > 0, x.nonzero(), torch.cat([x, x]), x.sort()[0])
    subject.stays(*results, x.half() if subject.capabilities.can("dtype.float16") else x, x.unique())


@check("smoke", requires=["numbered_devices"])
def bad_index_raises(subject: Subject) -> None:
    """An index that does not exist raises when it is used; it is no other device, silently."""
    import torch

    for index in (len(subject.devices) + 7, 99):
        with raises(RuntimeError, AssertionError, doing=f"torch.empty on {subject.device_type}:{index}"):
            torch.empty(1, device=torch.device(subject.device_type, index))


@check("smoke", requires=["numbered_devices"])
def current_device_is_kept(subject: Subject) -> None:
    """``set_device`` and the ``device`` context manager change the current device, and leaving the context restores it."""
    import torch

    other, module = subject.second_device(), subject.module
    assert module.current_device() == subject.device.index
    with module.device(other):
        assert module.current_device() == other.index
        assert torch.empty(1, device=subject.device_type).device == other
    assert module.current_device() == subject.device.index
    try:
        subject.accelerator.setup_device(other)
        assert torch.empty(1, device=subject.device_type).device == other, "setup_device did not make the device current"
    finally:
        subject.accelerator.setup_device(subject.device)


@check("smoke", requires=["numbered_devices"])
def devices_are_independent(subject: Subject) -> None:
    """Work on one device changes nothing on another, and results are on the device of the inputs, whichever is current."""
    import torch

    other = subject.second_device()
    mine, theirs = torch.zeros(4, device=subject.device), torch.ones(4, device=other)
    mine += 5
    result = theirs * 2
    assert result.device == other, f"a result of {other} is on {result.device}"
    assert theirs.tolist() == [1.0] * 4
    assert result.tolist() == [2.0] * 4


@check("smoke")
def count_is_steady(subject: Subject) -> None:
    """``auto_device_count`` answers the same after use as before, and what the device's module says."""
    count = subject.accelerator.auto_device_count()
    assert count == len(subject.devices)
    asked = getattr(subject.module, "device_count", None)
    if asked is not None:
        assert asked() == count, f"auto_device_count() says {count}, torch.{subject.device_type}.device_count() {asked()}"


@check("smoke")
def module_has_what_torch_asks_for(subject: Subject) -> None:
    """torch.<device_type> has what torch's own code takes for granted: ``is_available``, ``device_count``, ``current_device``."""
    for name in ("is_available", "device_count", "current_device"):
        subject.function(name)
    assert subject.function("is_available")() is True


@check("smoke")
def synchronize_waits(subject: Subject) -> None:
    """After ``synchronize`` what was queued is done, and it may be called on an idle device, and twice."""
    import torch

    x = torch.ones(256, 256, device=subject.device)
    for _ in range(5):
        x = x @ x / 256
    subject.synchronize()
    subject.synchronize()
    assert x.cpu().sum().item() == 256 * 256


@check("smoke")
def named_device_everywhere(subject: Subject) -> None:
    """Modules, optimizers, default devices and ``Runtime`` end on the device that was named."""
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to(subject.device)
    subject.stays(*module.parameters(), *module.buffers())
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(4, 3, device=subject.device)).sum().backward()
    optimizer.step()
    for state in optimizer.state.values():
        subject.stays(state["exp_avg"], state["exp_avg_sq"])
    with subject.device:
        subject.stays(torch.zeros(2), torch.nn.Linear(2, 2).weight)
    runtime = subject.runtime()
    assert runtime.device == subject.device, f"Runtime works on {runtime.device}"
    subject.stays(runtime.prepare(torch.nn.Linear(2, 2)).weight)


@check("smoke")
def mixing_devices_raises(subject: Subject) -> None:
    """A result of tensors of two devices is an error, not a silent copy."""
    import torch

    if subject.device_type == "cpu":
        return
    here, there = torch.ones(3), torch.ones(3, device=subject.device)
    for name, call in {
        "add": lambda: there + here,
        "mm": lambda: there.view(1, 3) @ here.view(3, 1),
        "cat": lambda: torch.cat([there, here]),
    }.items():
        with raises(RuntimeError, doing=f"{name} of a tensor on {subject.device} and one on the CPU"):
            call()


@check("smoke")
def scalars_come_back(subject: Subject) -> None:
    """``item``, ``tolist``, ``bool``, ``int`` and comparison give Python values, after everything queued before."""
    import torch

    x = torch.arange(5, device=subject.device) * 2
    assert x[3].item() == 6
    assert x.tolist() == [0, 2, 4, 6, 8]
    assert int(x.sum()) == 20
    assert bool((x >= 0).all())
    assert str(x[1].item()) == "2"


@check("smoke")
def tensors_print(subject: Subject) -> None:
    """``repr`` shows values and device."""
    import torch

    text = repr(torch.tensor([1.5, float("nan")], device=subject.device))
    assert "1.5" in text
    assert subject.device_type == "cpu" or subject.device_type in text, text
