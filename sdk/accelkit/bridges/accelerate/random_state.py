"""The device's random state in Accelerate's checkpoints. Accelerate itself saves the state of a device only if it knows the device."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch

from accelkit.bridges.accelerate.state import current_runtime
from accelkit.runtime import Runtime


def state_file(folder: str | os.PathLike[str], runtime: Runtime) -> Path:
    """Return the path ``random_states_<device type>_<process>.pkl``, beside Accelerate's ``random_states_<process>.pkl``."""
    return Path(folder) / f"random_states_{runtime.accelerator.device_type}_{runtime.process_index}.pkl"


def save_hook(models: list[Any], weights: list[Any], folder: str) -> None:
    """Save the random state of this process's device. Used with ``Accelerator.register_save_state_pre_hook``."""
    save_random_state(folder, current_runtime())


def load_hook(models: list[Any], folder: str) -> None:
    """Restore the random state of this process's device. Used with ``Accelerator.register_load_state_pre_hook``.

    If the checkpoint does not contain this state, this function issues a warning and leaves the generator unchanged.
    """
    load_random_state(folder, current_runtime())


def save_random_state(folder: str | os.PathLike[str], runtime: Runtime) -> None:
    """Save the random state of this process's device to ``state_file(folder, runtime)``.

    Does nothing on the CPU, whose state Accelerate itself saves, or on a device without a generator. Initialises the driver.

    Args:
        folder: The folder of the checkpoint, which must exist.
        runtime: The Runtime of the device whose random state is saved.
    """
    state = runtime.accelerator.get_rng_state(runtime.device)
    if state is not None and not _is_host(runtime):
        torch.save(state, state_file(folder, runtime))


def load_random_state(folder: str | os.PathLike[str], runtime: Runtime) -> None:
    """Restore the random state of this process's device from ``state_file(folder, runtime)``, or warn if the file does not exist.

    Does nothing on the CPU, whose state Accelerate restores, or on a device without a generator. Initialises the driver.
    """
    if _is_host(runtime) or runtime.accelerator.get_rng_state(runtime.device) is None:
        return
    file = state_file(folder, runtime)
    if not file.exists():
        warnings.warn(
            f"the checkpoint {os.fspath(folder)} has no random state for {runtime.device}: it was saved on another device type, by fewer "
            "processes, or without accelkit. The generator of the device is not changed.",
            stacklevel=2,
        )
        return
    runtime.accelerator.set_rng_state(torch.load(file, weights_only=True), runtime.device)


def _is_host(runtime: Runtime) -> bool:
    """Return whether the device is the CPU, whose generator Accelerate itself saves."""
    return torch.empty(0, device=runtime.device).is_cpu
