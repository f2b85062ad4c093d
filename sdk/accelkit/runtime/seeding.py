"""Random state: seeding all generators, and capturing and restoring their state for checkpoints."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accelkit.errors import UnsupportedError, UsageError
from accelkit.specs.accelerator import Accelerator
from accelkit.whole_number import whole_number

_LOWEST_SEED, _HIGHEST_SEED = -(2**63), 2**64 - 1


def check_seed(seed: int) -> int:
    """Return the seed as an int.

    Raises:
        UsageError: If the seed is not a whole number from -2**63 to 2**64 - 1, the range that torch accepts.
    """
    number = whole_number(seed)
    if number is not None and _LOWEST_SEED <= number <= _HIGHEST_SEED:
        return number
    raise UsageError(
        f"seed={seed!r:.80} is not a seed",
        why=f"torch accepts whole numbers from {_LOWEST_SEED} to {_HIGHEST_SEED}",
        hint="give an int, such as seed=0",
    )


def seed_host(seed: int) -> None:
    """Seed the generators of Python, NumPy (if imported) and torch on the host.

    Unlike ``torch.manual_seed``, this function never initialises a driver.

    Raises:
        UsageError: If the seed is not a whole number from -2**63 to 2**64 - 1, the range that torch accepts. In that case,
            nothing is seeded.
    """
    seed = check_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def seed_device(seed: int, accelerator: Accelerator, device: torch.device) -> None:
    """Seed the generators of all devices of the accelerator, unless ``device`` is the CPU.

    ``seed_host`` has already seeded the CPU's generator. If it were seeded again, it would repeat numbers that the program may have drawn
    since then.
    """
    if not torch.empty(0, device=device).is_cpu:
        seed_generators(seed, accelerator)


def seed_generators(seed: int, accelerator: Accelerator) -> None:
    """Seed the generators of an accelerator's devices, or warn if these devices have no generators."""
    try:
        accelerator.manual_seed(seed)
    except UnsupportedError as error:
        warnings.warn(f"seed={seed} seeds only the generators of the host: {error.what}, because {error.why}", stacklevel=2)


def capture(accelerator: Accelerator, device: torch.device) -> dict[str, Any]:
    """Return the state of the generators of the host and of ``device``, as values that a checkpoint can hold."""
    return capture_host() | {"device": accelerator.get_rng_state(device), "device_type": accelerator.device_type}


def capture_host() -> dict[str, Any]:
    """Return the state of the generators of Python, NumPy (if imported) and torch on the host, as values that a checkpoint can hold."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), position, has_gauss, cached)
    return state


def restore(state: Mapping[str, Any], accelerator: Accelerator, device: torch.device) -> None:
    """Restore all generators to the state that ``capture`` returned.

    If the state is from another device type, warn, and restore only the generators of the host.
    """
    restore_host(state)
    if state["device"] is not None and state["device_type"] == accelerator.device_type:
        accelerator.set_rng_state(state["device"], device)
    elif state["device"] is not None and state["device_type"] != accelerator.device_type:
        warnings.warn(
            f"the checkpoint's random state is from {state['device_type']} and cannot be restored on {accelerator.device_type}: "
            "from here on, the random numbers differ from those of an uninterrupted run",
            stacklevel=4,
        )


def restore_host(state: Mapping[str, Any]) -> None:
    """Restore the host's generators to the state that ``capture_host`` returned. Generators that are not in the state are unchanged."""
    if "python" in state:
        random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])


def check_rng_types(rng_types: Sequence[str] | None, device_type: str) -> tuple[str, ...]:
    """Return ``rng_types`` as a tuple, or ``("generator",)`` if ``rng_types`` is None.

    ``rng_types`` names the generators that are synchronised across processes before each epoch. The name ``torch`` stands for torch's
    generator on the host. The device type, such as ``cuda``, stands for the generator of the device. The name ``generator`` stands for the
    generators from which a prepared loader draws the order of its samples. With one process, nothing is synchronised.

    Raises:
        UsageError: If a name is not ``torch``, the device type or ``generator``.
    """
    known = ("torch", device_type, "generator")
    for name in rng_types or ():
        if name not in known:
            raise UsageError(
                f"rng_types={list(rng_types or ())!r} is invalid",
                why=f"there is no generator named {name!r}",
                hint=f"use any of {', '.join(known)}",
            )
    return tuple(rng_types if rng_types is not None else ("generator",))


def capture_named(rng_types: Sequence[str], accelerator: Accelerator, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of torch's host generator and of the device's generator, with the keys ``torch`` and ``device``.

    A generator is left out if ``rng_types`` (see ``check_rng_types``) does not name it. ``device`` is also left out if the device has no
    generator. Rank 0 calls this function, and then sends the states to the other ranks.
    """
    state: dict[str, torch.Tensor] = {}
    host = torch.default_generator.device.type
    if "torch" in rng_types or (host in rng_types and accelerator.device_type == host):
        state["torch"] = torch.get_rng_state()
    if accelerator.device_type in rng_types and (found := accelerator.get_rng_state(device)) is not None:
        state["device"] = found
    return state


def restore_named(state: Mapping[str, torch.Tensor], accelerator: Accelerator, device: torch.device) -> None:
    """Restore the state that ``capture_named`` returned on another process."""
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "device" in state:
        accelerator.set_rng_state(state["device"], device)
