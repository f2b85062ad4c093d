"""Checks of the functions that seed generators, or save and restore their states. Each function must act on the right devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.samplers import IN_PLACE
from accelkit_conformance.results import Absent, NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_seeder(subject: Subject, name: str) -> None:
    """Check that a seeding function of the device's module seeds the current device or all devices, as its name says.

    Args:
        subject: The plugin under test, with its device.
        name: The function: ``manual_seed``, ``seed``, ``manual_seed_all`` or ``seed_all``.

    Raises:
        AssertionError: If the function seeds the wrong devices, if ``manual_seed`` or ``manual_seed_all`` with the same seed gives other
            numbers the second time, or if ``seed`` or ``seed_all`` gives the same numbers twice.
        NotSupported: If the device's module does not have the function.
    """
    function = _function(subject, name)
    is_random = not name.startswith("manual")
    torch.manual_seed(1)
    old = [_drawn(device) for device in subject.devices]
    torch.manual_seed(1)
    function() if is_random else function(6)
    new = [_drawn(device) for device in subject.devices]
    for device, before, after in zip(subject.devices, old, new, strict=True):
        is_seeded = name.endswith("_all") or device == subject.device
        assert torch.equal(before, after) != is_seeded, f"{name} {'did not seed' if is_seeded else 'seeded'} {device}"
    function() if is_random else function(6)
    is_repeated = torch.equal(_drawn(subject.device), new[subject.devices.index(subject.device)])
    assert is_repeated != is_random, f"{name} for the second time {'repeats' if is_random else 'changes'} the numbers of {subject.device}"


def check_initial_seeds(subject: Subject) -> None:
    """Check that ``initial_seed`` returns the seed that was set, that ``seed`` sets another seed, and that two generators with the same
    state draw the same numbers.

    Raises:
        AssertionError: If ``initial_seed`` returns a wrong seed, if ``seed`` does not change the seed, or if the two generators draw
            different numbers.
    """
    asked = subject.optional_function("initial_seed")
    for seed in (0, 5, 2**31 + 1, 2**32 + 7, 2**53 + 1, 2**63 - 1):
        generator = torch.Generator(device=subject.device).manual_seed(seed)
        assert generator.initial_seed() == seed, f"a generator that was seeded with {seed} returns {generator.initial_seed()}"
        copy = torch.Generator(device=subject.device)
        copy.set_state(generator.get_state())
        first, second = (torch.rand(9, device=subject.device, generator=one).cpu() for one in (generator, copy))
        assert torch.equal(first, second), f"the state of a generator that was seeded with {seed} does not repeat its numbers"
        if asked is not None:
            torch.manual_seed(seed)
            assert asked() == seed, f"after torch.manual_seed({seed}), initial_seed() returns {asked()}"
    reseed = subject.optional_function("seed")
    if asked is not None and reseed is not None:
        reseed()
        assert asked() != seed, f"after seed(), initial_seed() still returns {seed}, the seed that was set before"
    found = generator.seed()
    assert generator.initial_seed() == found, f"seed() returned {found}, and initial_seed() {generator.initial_seed()}"


def check_state_of_a_device(subject: Subject, way: str) -> None:
    """Check that the random state of a device can be saved and restored while another device is current.

    Restoring the state must not change the numbers that the current device draws. These numbers may change only if ``way`` is ``all``,
    because the states of all devices are restored in this case.

    Args:
        subject: The plugin under test, with its device.
        way: Which functions save and restore the state. ``accelerator``: the accelerator's functions. ``fork_rng``:
            ``torch.random.fork_rng``. ``all``: the device module's functions for all devices. ``name``: the device module's functions for
            one device, called with the name of the device. ``module``: the same functions, called with the ``torch.device``.

    Raises:
        AssertionError: If the restored device does not repeat its numbers, or if ``way`` is not ``all`` and restoring the state changes the
            numbers that the current device draws.
        NotSupported: If there is only one device, or if the device's module does not have the functions.
    """
    mine, other = subject.device, subject.second_device()
    save, restore = _functions(subject, way)
    torch.manual_seed(4)
    torch.rand(5, device=other)
    if way == "fork_rng":
        with torch.random.fork_rng(devices=[other.index], device_type=other.type):
            first = _drawn(other)
            torch.rand(3, device=mine)
    else:
        state = save(other)
        first = _drawn(other)
        torch.rand(3, device=mine)
        restore(state, other)
    again, following = _drawn(other), _drawn(mine)
    assert torch.equal(again, first), f"the state of {other} was not restored while {mine} was current"
    torch.manual_seed(4)
    torch.rand(3, device=mine)
    is_kept = torch.equal(_drawn(mine), following)
    assert is_kept or way == "all", f"restoring the state of {other} changed the numbers that {mine} draws"


def _functions(subject: Subject, way: str) -> tuple[Callable[[torch.device], Any], Callable[[Any, torch.device], None]]:
    """Return a function that saves the state of a device, and a function that restores it."""
    if way == "accelerator":
        return subject.accelerator.get_rng_state, subject.accelerator.set_rng_state
    suffix = "_all" if way == "all" else ""
    get, put = (_function(subject, f"{name}_rng_state{suffix}") for name in ("get", "set"))
    if way == "all":
        return lambda device: get(), lambda states, device: put(states)
    name = str if way == "name" else lambda device: device
    return lambda device: get(name(device)), lambda state, device: put(state, name(device))


def _function(subject: Subject, name: str) -> Callable[..., Any]:
    function = subject.optional_function(name)
    if function is None:
        raise NotSupported(f"torch.{subject.device_type} has no {name}")
    return function


def _drawn(device: torch.device) -> torch.Tensor:
    return torch.rand(20, device=device).cpu()


def check_small_draws(subject: Subject, name: str) -> None:
    """Check that setting a seed or a state discards random numbers that the generator has computed in advance but not yet returned.

    Args:
        subject: The plugin under test, with its device.
        name: ``rand``, ``randn``, or the name of a sampler in ``samplers.IN_PLACE``.

    Raises:
        AssertionError: If setting the same seed or state again gives different numbers.
        Absent: If the device has no random state.
    """

    def draw(count: int) -> torch.Tensor:
        if name in IN_PLACE:
            return IN_PLACE[name](torch.zeros(count, device=subject.device), None).cpu()
        return (torch.rand if name == "rand" else torch.randn)(count, device=subject.device).cpu()

    def drawn() -> list[float]:
        return torch.cat([draw(count) for count in (1, 2, 3, 17)]).tolist()

    draw(1)
    state = subject.accelerator.get_rng_state(subject.device)
    if state is None:
        raise Absent("there is no random state")
    following = drawn()
    accelerator, device = subject.accelerator, subject.device
    row = torch.stack([torch.zeros_like(state), state])[1] if device.type != "cpu" else state  # a row crashes torch's generator of the CPU
    ways: dict[str, tuple[Callable[[], Any], list[float] | None]] = {
        "set_rng_state": (lambda: accelerator.set_rng_state(state, device), following),
        "set_rng_state with a row of a larger tensor": (lambda: accelerator.set_rng_state(row, device), following),
        "accelerator.manual_seed": (lambda: accelerator.manual_seed(5), None),
        "torch.manual_seed": (lambda: torch.manual_seed(5), None),
    }
    for way, (restart, known) in ways.items():
        restart()
        expected = drawn() if known is None else known
        restart()
        found = drawn()
        wrong = [place for place, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
        assert not wrong, f"{name} after {way}: {len(wrong)} of {len(found)} numbers are not repeated, first the one at {wrong[0]}"
