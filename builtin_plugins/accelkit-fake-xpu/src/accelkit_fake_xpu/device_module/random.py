"""Random state. Each device has a generator. ``torch.manual_seed`` seeds the generators of all devices and of the host."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from accelkit_fake_xpu.device_module.devices import Device, device_count, index_of


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device."""
    torch.ops.fake_xpu.manual_seed(index_of(), _as_int64(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    for index in range(device_count()):
        torch.ops.fake_xpu.manual_seed(index, _as_int64(seed))


def seed() -> None:
    """Seed the generator of the current device with a random number."""
    manual_seed(torch.Generator().seed())


def seed_all() -> None:
    """Seed the generators of all devices with the same random number."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return int(torch.ops.fake_xpu.initial_seed(index_of())) % (1 << 64)


def get_rng_state(device: Device = "fake_xpu") -> torch.Tensor:
    """Return the state of the device's generator as a CPU tensor of bytes."""
    state: torch.Tensor = torch.ops.fake_xpu.get_rng_state(index_of(device))
    return state


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Device = "fake_xpu") -> None:
    """Set the state of the device's generator to a state that ``get_rng_state`` returned."""
    torch.ops.fake_xpu.set_rng_state(index_of(device), new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all devices' generators to the states that ``get_rng_state_all`` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def default_generators() -> tuple[torch.Generator, ...]:
    """Return the default generator of each device.

    Random operations on a device use its default generator unless the caller passes another generator. The attribute
    ``torch.fake_xpu.default_generators`` contains the result of this function.
    """
    return tuple(torch.ops.fake_xpu.default_generator(index) for index in range(device_count()))


def _as_int64(seed: int) -> int:
    seed = int(seed) % (1 << 64)
    return seed - (1 << 64) if seed >= 1 << 63 else seed
