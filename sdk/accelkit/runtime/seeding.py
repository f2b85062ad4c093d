"""Random state: seeding every generator, capturing and restoring them for a checkpoint."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accelkit.errors import UsageError
from accelkit.specs.accelerator import Accelerator


def seed_host(seed: int) -> None:
    """Seed Python's, NumPy's (where it is imported) and torch's own generator. Initialises no driver, as ``torch.manual_seed`` may."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def seed_device(seed: int, accelerator: Accelerator, device: torch.device) -> None:
    """Seed the device's generators, unless they are the host's, from which the program may have drawn already."""
    if not torch.empty(0, device=device).is_cpu:
        accelerator.manual_seed(seed)


def capture(accelerator: Accelerator, device: torch.device) -> dict[str, Any]:
    """The state of every generator, as values that a checkpoint can hold."""
    return capture_host() | {"device": accelerator.get_rng_state(device), "device_type": accelerator.device_type}


def capture_host() -> dict[str, Any]:
    """The state of Python's, NumPy's (where it is imported) and torch's own generator, as values that a checkpoint can hold."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), position, has_gauss, cached)
    return state


def restore(state: Mapping[str, Any], accelerator: Accelerator, device: torch.device) -> None:
    """Put every generator back to what ``capture`` found. What is of another kind of device cannot be set here: a warning says so."""
    restore_host(state)
    if state["device"] is not None and state["device_type"] == accelerator.device_type:
        accelerator.set_rng_state(state["device"], device)
    elif state["device"] is not None and state["device_type"] != accelerator.device_type:
        warnings.warn(
            f"the checkpoint's random state is of {state['device_type']} and cannot be set on {accelerator.device_type}: "
            "what is drawn from here on is not what would have been drawn there",
            stacklevel=4,
        )


def restore_host(state: Mapping[str, Any]) -> None:
    """Put the host's generators back to what ``capture_host`` found. A state of torch's alone sets torch's alone."""
    if "python" in state:
        random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])


def check_rng_types(rng_types: Sequence[str] | None, device_type: str) -> tuple[str, ...]:
    """The generators that processes agree on before each epoch; on one process there is nothing to agree on.

    Raises:
        UsageError: If one is not ``torch``, the device's name or ``generator``.
    """
    known = ("torch", device_type, "generator")
    for name in rng_types or ():
        if name not in known:
            raise UsageError(
                f"rng_types={list(rng_types or ())!r}", why=f"there is no generator {name!r}", hint=f"use any of {', '.join(known)}"
            )
    return tuple(rng_types if rng_types is not None else ("generator",))


def capture_named(rng_types: Sequence[str], accelerator: Accelerator, device: torch.device) -> dict[str, torch.Tensor]:
    """The state of torch's own and of the device's generator, as far as they are named: what rank 0 gives to the others."""
    state: dict[str, torch.Tensor] = {}
    host = torch.default_generator.device.type
    if "torch" in rng_types or (host in rng_types and accelerator.device_type == host):
        state["torch"] = torch.get_rng_state()
    if accelerator.device_type in rng_types and (found := accelerator.get_rng_state(device)) is not None:
        state["device"] = found
    return state


def restore_named(state: Mapping[str, torch.Tensor], accelerator: Accelerator, device: torch.device) -> None:
    """Set what ``capture_named`` found on another process."""
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "device" in state:
        accelerator.set_rng_state(state["device"], device)
