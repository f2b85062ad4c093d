"""Functions that create a tensor on a given device, or move one to it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Make = Callable[[torch.device], torch.Tensor]

FLOATS: dict[str, _Make] = {
    "empty": lambda device: torch.empty(2, device=device),
    "empty_strided": lambda device: torch.empty_strided((2, 3), (1, 2), device=device),
    "empty_permuted": lambda device: torch.empty_permuted((2, 3), (1, 0), device=device),
    "zeros": lambda device: torch.zeros(2, device=device),
    "ones": lambda device: torch.ones(2, device=device),
    "full": lambda device: torch.full((2,), 1.5, device=device),
    "scalar_tensor": lambda device: torch.scalar_tensor(1.5, device=device),
    "tensor": lambda device: torch.tensor([1.5], device=device),
    "as_tensor": lambda device: torch.as_tensor([1.5], device=device),
    "arange": lambda device: torch.arange(3.0, device=device),
    "linspace": lambda device: torch.linspace(0, 1, 4, device=device),
    "logspace": lambda device: torch.logspace(0, 1, 4, device=device),
    "eye": lambda device: torch.eye(3, device=device),
    "eye of a rectangle": lambda device: torch.eye(2, 3, device=device),
    "rand": lambda device: torch.rand(2, device=device),
    "randn": lambda device: torch.randn(2, device=device),
    "normal": lambda device: torch.normal(0.0, 1.0, (2,), device=device),
    "hann_window": lambda device: torch.hann_window(5, device=device),
    "hamming_window": lambda device: torch.hamming_window(5, device=device),
    "bartlett_window": lambda device: torch.bartlett_window(5, device=device),
    "blackman_window": lambda device: torch.blackman_window(5, device=device),
    "kaiser_window": lambda device: torch.kaiser_window(5, device=device),
    "fftfreq": lambda device: torch.fft.fftfreq(5, device=device),
    "rfftfreq": lambda device: torch.fft.rfftfreq(5, device=device),
    "zeros_like": lambda device: torch.zeros_like(torch.ones(2), device=device),
    "ones_like": lambda device: torch.ones_like(torch.ones(2), device=device),
    "full_like": lambda device: torch.full_like(torch.ones(2), 3.0, device=device),
    "empty_like": lambda device: torch.empty_like(torch.ones(2), device=device),
    "rand_like": lambda device: torch.rand_like(torch.ones(2), device=device),
    "randn_like": lambda device: torch.randn_like(torch.ones(2), device=device),
    "new_zeros": lambda device: torch.ones(2).new_zeros(2, device=device),
    "new_ones": lambda device: torch.ones(2).new_ones(2, device=device),
    "new_full": lambda device: torch.ones(2).new_full((2,), 3.0, device=device),
    "new_empty": lambda device: torch.ones(2).new_empty(2, device=device),
    "new_tensor": lambda device: torch.ones(2).new_tensor([1.5], device=device),
    "new": lambda device: torch.ones(2, device=device).new([1.5]),  # type: ignore[no-untyped-call]
    "empty, with new": lambda device: torch.ones(2, device=device).new(2, 3),  # type: ignore[no-untyped-call]
}
"""Functions that create a float32 tensor on a device, by name."""

INTEGERS: dict[str, _Make] = {
    "randint": lambda device: torch.randint(9, (2,), device=device),
    "randint_like": lambda device: torch.randint_like(torch.ones(2), 9, device=device),
    "randperm": lambda device: torch.randperm(5, device=device),
    "tril_indices": lambda device: torch.tril_indices(3, 3, device=device),
    "triu_indices": lambda device: torch.triu_indices(3, 3, device=device),
}
"""Functions that create a tensor on a device and need int64 there, by name."""


def check_factories(subject: Subject) -> None:
    """Call every factory function with each of two devices while the other device is current, and check the device of the tensor.

    The values are compared with those on the CPU, except those of uninitialised and random tensors. Differences are recorded in the
    subject.

    Raises:
        NotSupported: If there is only one device.
    """
    makers = FLOATS | ({} if subject.lacks("int64") else INTEGERS)
    for device in (subject.second_device(), subject.device):
        current = subject.device if device != subject.device else subject.second_device()
        for name, make in makers.items():
            with subject.sample(f"{name} on {device}, with {current} current", {"name": name}), subject.module.device(current):
                made = make(device)
                assert made.device == device, f"torch.{name} on {device} made a tensor on {made.device}"
                if name.startswith(("empty", "new_empty", "rand", "normal")):
                    continue
                expected = make(torch.device("cpu"))
                assert torch.allclose(made.cpu(), expected), f"torch.{name} gave {made.tolist()}, not {expected.tolist()}"


_MOVES: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "to a torch.device": lambda x, device: x.to(device),
    "to a name": lambda x, device: x.to(str(device)),
    "to a device and a dtype": lambda x, device: x.to(device, torch.float32),
    "to a device, with copy=True": lambda x, device: x.to(device, copy=True),
    "as_tensor": lambda x, device: torch.as_tensor(x, device=device),
    "zeros_like": lambda x, device: torch.zeros_like(x, device=device),
    "new_zeros": lambda x, device: x.new_zeros(2, device=device),
    "Module.to": lambda x, device: torch.nn.Linear(2, 2, device=x.device).to(device).weight,
}
"""Functions that move a tensor or a module to a device, or create a tensor on the device from a tensor on another device, by name. Each is
called with a tensor on another device, and with the device."""


def check_devices_without_an_index(subject: Subject) -> None:
    """Pass a device without an index to functions that create or move tensors, and check that the functions use the current device.

    A failure is recorded in the subject if a function uses another device.

    Raises:
        NotSupported: If there is only one device.
    """
    named = torch.device(subject.device_type)
    for current, other in itertools.permutations((subject.device, subject.second_device())):
        calls: dict[str, Callable[[], torch.Tensor]] = {name: functools.partial(make, named) for name, make in FLOATS.items()}
        for source in (other, torch.device("cpu")):
            x = torch.ones(2, device=source)
            calls |= {f"{name} from {source}": functools.partial(move, x, named) for name, move in _MOVES.items()}
        for name, call in calls.items():
            with subject.sample(f"{name}, with {current} current", {"name": name}), subject.module.device(current):
                found = call().device
                assert found == current, f"{name} with the device {named} used {found}, although {current} is the current device"


def check_devices_of_tensors(subject: Subject) -> None:
    """Check that common functions create tensors on each device, and on the CPU if they get ``device="cpu"``.

    Raises:
        AssertionError: If a tensor is on another device.
    """
    for device in subject.devices:
        made = {
            "empty": torch.empty(2, device=device),
            "zeros": torch.zeros(2, device=device),
            "tensor": torch.tensor([1.0, 2.0], device=device),
            "arange": torch.arange(3.0, device=device),
            "randn": torch.randn(2, device=device),
            "to": torch.ones(2).to(device),
            "zeros_like": torch.zeros_like(torch.ones(2), device=device),
            "new_zeros": torch.zeros(1, device=device).new_zeros(3),
        }
        for name, tensor in made.items():
            assert tensor.device == device, f"torch.{name} on {device} made a tensor on {tensor.device}"
        there = torch.zeros(2, device=device)
        for name, tensor in {"ones_like": torch.ones_like(there, device="cpu"), "new_zeros": there.new_zeros(3, device="cpu")}.items():
            assert tensor.device.type == "cpu", f"{name} of a tensor on {device} with device='cpu' made a tensor on {tensor.device}"
