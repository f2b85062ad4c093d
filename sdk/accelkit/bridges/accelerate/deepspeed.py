"""Accelerate's ``DeepSpeedPlugin`` on a plugin's device.

Accelerate itself imports DeepSpeed only when ``Accelerator.prepare`` is called, and then calls ``deepspeed.initialize``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from accelkit.bridges.deepspeed import (
    check_accelerator,
    set_accelerator,
    set_accelerator_on_import,
    unset_accelerator_on_import,
    without_compiling,
)
from accelkit.bridges.deepspeed.environment import device_index_variables, variables_restored
from accelkit.errors import UnavailableError
from accelkit.specs.accelerator import Accelerator

_ARGUMENTS = ("deepspeed_plugin", "deepspeed_plugins")
_VARIABLE = "ACCELERATE_USE_DEEPSPEED"  # set by accelerate launch, and by an Accelerator that is given a DeepSpeedPlugin


def is_used() -> bool:
    """Return whether Accelerate trains with DeepSpeed in this process.

    The result is False if no ``accelerate.Accelerator`` has been created yet.
    """
    return bool(AcceleratorState._shared_state.get("distributed_type") == DistributedType.DEEPSPEED)


def is_requested(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether an ``Accelerator`` created with these arguments and environment variables would train with DeepSpeed.

    Always True if an earlier ``Accelerator`` of this process trains with DeepSpeed.

    Args:
        arguments: The arguments that were passed to ``Accelerator``, by name.
        environ: The environment variables, including ACCELERATE_USE_DEEPSPEED, which ``accelerate launch --use_deepspeed`` sets.
    """
    return is_used() or any(arguments.get(name) is not None for name in _ARGUMENTS) or environ.get(_VARIABLE, "").lower() == "true"


def expect(accelerator: Accelerator) -> None:
    """Make DeepSpeed use the accelerator's device if DeepSpeed is imported later, for example by transformers for ZeRO 3."""
    with contextlib.suppress(UnavailableError):
        set_accelerator_on_import(accelerator)


def forget() -> None:
    """Undo ``expect``."""
    unset_accelerator_on_import()


def start(accelerator: Accelerator) -> None:
    """Import DeepSpeed, and make DeepSpeed use the device of the accelerator.

    Raises:
        UnavailableError: If DeepSpeed is not installed.
        UnsupportedError: If DeepSpeed cannot use the device, or accelkit does not support the installed version of DeepSpeed.
        ContradictionError: If DeepSpeed already uses another device in this process.
    """
    check_accelerator(accelerator)
    set_accelerator(accelerator)


@contextlib.contextmanager
def on(device: torch.device) -> Iterator[None]:
    """Inside the ``with`` block, make ``deepspeed.initialize`` use this device.

    DeepSpeed reads the index of its device from environment variables. Inside the block, LOCAL_RANK is therefore set to the index of the
    device. OMPI_COMM_WORLD_LOCAL_RANK is also set to this index, but only if it was already set. If the device has no index and LOCAL_RANK
    was already set, both variables are left unchanged.

    The block also prevents ``deepspeed.initialize`` from compiling a CPU operator that is used only for inference. DeepSpeed must already
    have been imported.
    """
    with variables_restored(device_index_variables(device)), without_compiling():
        yield
