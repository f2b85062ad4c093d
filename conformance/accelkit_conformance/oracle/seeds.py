"""Checks of seeds and saved random states of devices, and a check that random functions on a device do not use the CPU's generator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.results import Absent

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_reseeding(subject: Subject) -> None:
    """Check that the same seed gives the same numbers, and that another seed gives other numbers.

    Raises:
        AssertionError: If the same seed gives different numbers, or if two seeds give the same numbers.
    """

    def drawn(seed: int, seeder: Callable[[int], Any]) -> torch.Tensor:
        seeder(seed)
        return torch.rand(1000, device=subject.device).cpu()

    for name, seeder in {"accelerator.manual_seed": subject.accelerator.manual_seed, "torch.manual_seed": torch.manual_seed}.items():
        first = drawn(5, seeder)
        assert torch.equal(first, drawn(5, seeder)), f"{name}(5) twice gave different numbers"
        assert not torch.equal(first, drawn(6, seeder)), f"{name}(5) and (6) gave the same numbers"


def check_restored_state(subject: Subject) -> None:
    """Check that restoring a state repeats the numbers that were drawn after the state was saved, and that drawing does not change the
    saved state.

    Raises:
        AssertionError: If the numbers differ, if the saved state changes, or if the saved state is not a uint8 tensor on the CPU.
        Absent: If the device has no random state.
    """
    accelerator, device = subject.accelerator, subject.device

    def draw() -> list[torch.Tensor]:
        drawn = [torch.rand(7, device=device).cpu(), torch.randn(501, device=device).cpu()]
        if not subject.lacks("bool"):
            drawn.append(torch.nn.functional.dropout(torch.ones(100, device=device)).cpu())
        if not subject.lacks("int64"):
            drawn.append(torch.randperm(20, device=device).cpu())
        return drawn

    torch.rand(13, device=device)
    state = accelerator.get_rng_state(device)
    if state is None:
        raise Absent("there is no random state")
    assert state.device.type == "cpu", f"the state is on {state.device}"
    assert state.dtype == torch.uint8, f"the state is {state.dtype}"
    kept = state.clone()
    first = draw()
    assert torch.equal(state, kept), "drawing changed the state that was read, which is not a copy"
    accelerator.set_rng_state(kept, device)
    for number, (one, other) in enumerate(zip(first, draw(), strict=True)):
        assert torch.equal(one, other), f"draw {number} after setting the state differs from the one before"


def forked_rng(subject: Subject) -> contextlib.AbstractContextManager[None]:
    """Return ``fork_rng`` for the device under test."""
    if subject.device_type == "cpu":
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[subject.device.index or 0], device_type=subject.device_type)


def check_fork_rng(subject: Subject) -> None:
    """Check that ``fork_rng`` restores the random state of the device.

    Raises:
        AssertionError: If drawing or seeding inside ``fork_rng`` changes the numbers that are drawn after it.
    """
    subject.accelerator.manual_seed(3)
    expected = torch.rand(5, device=subject.device).cpu()
    subject.accelerator.manual_seed(3)
    with forked_rng(subject):
        torch.rand(100, device=subject.device)
        subject.accelerator.manual_seed(99)
    assert torch.equal(torch.rand(5, device=subject.device).cpu(), expected), "draws inside fork_rng changed the draws after it"


def check_host_generator(subject: Subject) -> None:
    """Check that generating random numbers on the device does not use the CPU's generator. Does nothing if the device is the CPU.

    Raises:
        AssertionError: If a draw changes the state of the generator of the CPU.
    """
    if subject.device_type == "cpu":
        return
    before = torch.default_generator.get_state()
    x = torch.rand(100, device=subject.device)
    draws = {"rand": lambda: torch.rand(100, device=subject.device), "randn": lambda: torch.randn(100, device=subject.device)}
    draws |= {"normal_": x.normal_}
    if not subject.lacks("bool"):
        draws["dropout"] = lambda: torch.nn.functional.dropout(x)
    for name, draw in draws.items():
        draw()
        assert torch.equal(torch.default_generator.get_state(), before), f"{name} on the device drew from the CPU's generator"


def check_seeds_of_devices(subject: Subject) -> None:
    """Check that ``torch.manual_seed`` seeds every device.

    Raises:
        AssertionError: If the same seed gives different numbers on a device, or if different seeds give the same numbers.
    """
    for device in subject.devices:
        drawn = []
        for seed in (7, 7, 8, 0, 2**31):
            torch.manual_seed(seed)
            drawn.append(torch.rand(50, device=device).cpu())
        assert torch.equal(drawn[0], drawn[1]), f"torch.manual_seed does not seed {device}"
        assert len(torch.stack(drawn).unique(dim=0)) == 4, f"different seeds give the same numbers on {device}"
