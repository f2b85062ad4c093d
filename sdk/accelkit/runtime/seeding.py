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
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state(), "device": accelerator.get_rng_state(device)}
    state["device_type"] = accelerator.device_type
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), position, has_gauss, cached)
    return state


def restore(state: Mapping[str, Any], accelerator: Accelerator, device: torch.device) -> None:
    """Put every generator back to what ``capture`` found. What is of another kind of device cannot be set here: a warning says so."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if state["device"] is not None and state["device_type"] == accelerator.device_type:
        accelerator.set_rng_state(state["device"], device)
    elif state["device"] is not None and state["device_type"] != accelerator.device_type:
        warnings.warn(
            f"the checkpoint's random state is of {state['device_type']} and cannot be set on {accelerator.device_type}: "
            "what is drawn from here on is not what would have been drawn there",
            stacklevel=4,
        )
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
