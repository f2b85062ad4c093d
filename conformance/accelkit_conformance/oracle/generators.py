"""Checks of ``torch.Generator`` objects of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle.samplers import IN_PLACE, INTEGER_SAMPLERS, SAMPLERS

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_default_and_other(subject: Subject) -> None:
    """Check that a generator that is seeded twice with the same seed repeats its numbers, even if the default generator draws in between.

    Raises:
        AssertionError: If the generator does not repeat its numbers, or if its initial seed is wrong.
    """
    generator = torch.Generator(device=subject.device)
    generator.manual_seed(4)
    first = torch.rand(20, device=subject.device, generator=generator).cpu()
    generator.manual_seed(4)
    torch.rand(20, device=subject.device)
    assert torch.equal(torch.rand(20, device=subject.device, generator=generator).cpu(), first)
    assert generator.initial_seed() == 4


def check_states_of_generators(subject: Subject) -> None:
    """Check that the state of a generator that has drawn numbers can be copied, restored and cloned.

    Raises:
        AssertionError: If a generator with the copied, restored or cloned state does not draw the same numbers or is on another device, or
            if drawing numbers changes a state that ``get_state`` has returned before.
    """
    draws = {name: SAMPLERS[name] for name in ("rand", "randn", "exponential_", "bernoulli_", "normal_", "uniform_")}
    for name, draw in draws.items():
        generator = _new(subject).manual_seed(31)
        for count in (1, 3, 64):
            torch.rand(count, device=subject.device, generator=generator)
        draw(subject.device, generator)
        state = generator.get_state()
        kept = state.clone()
        clone = generator.clone_state() if hasattr(generator, "clone_state") else None
        expected = [draw(subject.device, generator).cpu() for _ in range(2)]
        assert torch.equal(state, kept), "drawing numbers changed the state that was read from a generator"
        torch.randn(1, device=subject.device, generator=generator)  # a kernel may draw a pair and keep the second number
        other = _new(subject)
        other.set_state(state)
        generator.set_state(state)
        for what, one in (("another generator with its state", other), ("the generator with its old state", generator), ("a clone", clone)):
            if one is not None:
                assert one.device == generator.device, f"{what} is on {one.device}, not on {generator.device}"
                found = [draw(subject.device, one).cpu() for _ in range(2)]
                are_equal = all(map(torch.equal, found, expected))
                assert are_equal, f"{what}, after numbers were drawn, does not repeat the numbers of {name}"


def check_seeds_of_generators(subject: Subject) -> None:
    """Check the methods ``manual_seed``, ``seed`` and ``initial_seed`` of a generator, and its device.

    A generator of a device without an index must work like one of the current device. Failures of this are recorded in the subject.

    Raises:
        AssertionError: If a method returns a wrong value, if the generator is on the wrong device, or if it draws the same numbers with
            different seeds or different numbers with the same seed.
    """
    device, generator = subject.device, _new(subject)
    for name, draw in SAMPLERS.items():
        if not (name in INTEGER_SAMPLERS and subject.lacks("int64")):
            with subject.sample(f"{name} without an index", {"name": name}):
                first = draw(device, torch.Generator(device=device).manual_seed(6))
                for place in (device, device.type):
                    found = draw(place, torch.Generator(device=device.type).manual_seed(6))
                    subject.assert_on_device(found)
                    assert torch.equal(found.cpu(), first.cpu()), f"{name} on {place} draws other numbers with Generator({device.type!r})"
    assert generator.device.type == device.type, f"a generator of {device} says that it is on {generator.device}"
    assert torch.Generator(device=str(device)).device == generator.device, f"Generator({str(device)!r}) is on another device"
    assert generator.manual_seed(3) is generator, "manual_seed does not return the generator"
    torch.rand(5, device=device, generator=generator)
    assert generator.initial_seed() == 3, f"after drawing numbers, initial_seed() is {generator.initial_seed()}, not 3"
    for seed, remainder in ((-1, 2**64 - 1), (-5, 2**64 - 5), (2**64 - 1, 2**64 - 1), (2**63, 2**63)):
        found = generator.manual_seed(seed).initial_seed()
        assert found == remainder, f"manual_seed({seed}) sets the seed {found}, not {remainder}"
    seeds = [generator.seed() for _ in range(3)]
    assert len(set(seeds)) == 3, f"seed() chose the seeds {seeds}"
    first = torch.rand(50, device=device, generator=generator).cpu()
    generator.seed()
    assert not torch.equal(torch.rand(50, device=device, generator=generator).cpu(), first), "seed() does not change the numbers"
    again = torch.rand(50, device=device, generator=generator.manual_seed(seeds[2])).cpu()
    assert torch.equal(again, first), "the seed that seed() returned does not repeat the numbers"


def check_wrong_generators(subject: Subject) -> None:
    """Check that ``set_state`` raises an error for a state of the wrong form, and that drawing with a generator of another device raises an
    error.

    The error must be a RuntimeError, TypeError or ValueError. If drawing raises no such error, or changes the CPU's generator, the failure
    is recorded in the subject.

    Raises:
        AssertionError: If ``set_state`` raises no such error, or changes the state.
    """
    generator = _new(subject).manual_seed(8)
    state = generator.get_state()
    wrong = {
        "a state that is too short": state[:-1],
        "a state that is too long": torch.cat([state, state[:3]]),
        "a state without bytes": state[:0],
        "a state of int32": state.int(),
    }
    for name, one in wrong.items():
        with raises(subject, RuntimeError, TypeError, ValueError, doing=f"set_state with {name}"):
            generator.set_state(one)
        assert torch.equal(generator.get_state(), state), f"set_state with {name} changed the state"
    if subject.device_type == "cpu":
        return
    host = torch.Generator().manual_seed(8)
    before = host.get_state()
    for name, sampler in SAMPLERS.items():
        if not (name in INTEGER_SAMPLERS and subject.lacks("int64")):
            with subject.sample(f"{name} with the CPU's generator", {"name": name}):
                with raises(subject, RuntimeError, ValueError, TypeError, doing=f"{name} on {subject.device} with a generator of the CPU"):
                    sampler(subject.device, host)
                assert torch.equal(host.get_state(), before), "the generator of the CPU drew numbers"
    for name, draw in IN_PLACE.items():
        with (
            subject.sample(f"{name} of a tensor on the CPU", {"name": name}),
            raises(subject, RuntimeError, ValueError, TypeError, doing=f"{name} on the CPU with a generator of {subject.device}"),
        ):
            draw(torch.zeros(9), generator)


def _new(subject: Subject) -> torch.Generator:
    return torch.Generator(device=subject.device)
