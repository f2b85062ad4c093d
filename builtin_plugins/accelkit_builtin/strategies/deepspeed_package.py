"""Checking whether the package deepspeed can be used for a device, importing the package, and creating its engine.

Importing deepspeed takes seconds, chooses a device for the whole process, and sets variables in ``os.environ``. The functions of this
module restore ``os.environ``. DeepSpeed logs through the logger ``DeepSpeed``, whose level is ``WARNING`` unless DeepSpeed's configuration
sets ``log_level``. Neither importing deepspeed nor creating an engine installs a signal handler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from accelkit import Accelerator, ContradictionError, UnavailableError
from accelkit.bridges.deepspeed import (
    check_accelerator,
    device_index_variables,
    set_accelerator,
    variables_restored,
    without_compiling,
)
from accelkit_builtin.optional_package import OptionalPackage

if TYPE_CHECKING:
    import torch

# The oldest supported version is the first one that supports managed_gradient_accumulation=false in every stage.
PACKAGE = OptionalPackage("deepspeed", distribution="deepspeed", minimum="0.19.8", install="pip install 'accelkit[deepspeed]'")


def check_package(accelerator: Accelerator, plugin: str) -> None:
    """Check that DeepSpeed is installed, is new enough, and can use this accelerator. The check does not import DeepSpeed.

    Args:
        accelerator: The accelerator.
        plugin: The plugin that needs DeepSpeed, as ``dist==version``. The UnavailableError and the ContradictionError contain this text.

    Raises:
        UnavailableError: If DeepSpeed is missing or too old.
        UnsupportedError: If DeepSpeed does not know the device type, and ``accelkit.bridges.deepspeed`` does not support the accelerator.
        ContradictionError: If DS_ACCELERATOR names another device.
    """
    device_type, line = accelerator.device_type, PACKAGE.install
    if device_type == "cpu":
        line = "DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip install --no-build-isolation deepspeed"
    answer = dataclasses.replace(PACKAGE, install=line).probe()
    if not answer.is_usable:
        raise UnavailableError("strategy 'deepspeed' cannot be used", plugin=plugin, why=answer.reason, hint=answer.hint)
    check_accelerator(accelerator)
    requested = os.environ.get("DS_ACCELERATOR")
    if requested and requested != device_type:
        raise ContradictionError(
            f"DS_ACCELERATOR={requested} contradicts accelerator {accelerator.name!r}, whose device type is {device_type}",
            plugin=plugin,
            why="DeepSpeed and the Runtime would use different devices",
            hint=f"unset DS_ACCELERATOR, or set it to {device_type}",
        )


def load(accelerator: Accelerator) -> None:
    """Import DeepSpeed and make it use the accelerator's device, even if DeepSpeed does not know the device type.

    ``os.environ`` is left unchanged. In every step, DeepSpeed calls functions that torch 2.13 deprecated. After this function has returned,
    torch's FutureWarnings about these functions are ignored.

    Args:
        accelerator: The accelerator, which must be loaded.

    Raises:
        UnavailableError: If DeepSpeed is not installed.
        UnsupportedError: If the installed version of DeepSpeed needs methods that accelkit does not implement.
        ContradictionError: If DeepSpeed already uses another device in this process.
    """
    with _environment({"DS_ACCELERATOR": accelerator.device_type}):
        set_accelerator(accelerator)
    # torch 2.13 renamed functions that DeepSpeed calls in every step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.(all_gather_into|reduce_scatter)_tensor` is deprecated", FutureWarning)


def initialize(module: torch.nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], device: torch.device) -> Any:
    """Create and return a DeepSpeedEngine for a module and its optimizer. ``os.environ`` is left unchanged.

    Raises:
        Exception: If DeepSpeed raises an error, which may be of any type.
    """
    with _environment({"DS_ACCELERATOR": device.type} | device_index_variables(device)):
        import deepspeed

        with without_compiling():
            engine = deepspeed.initialize(model=module, optimizer=optimizer, config=config)[0]
    if engine.zero_optimization_stage() == 3:
        _set_device_index_in_forward(engine, device)
    return engine


def _set_device_index_in_forward(engine: Any, device: torch.device) -> None:
    """Make the engine set the environment variables for the device index during each forward pass.

    ZeRO stage 3 reads the index of the device from these variables. One of them is LOCAL_RANK. Not every launcher sets it, and a launcher's
    value is not the index of the device if the job uses only some of the machine's devices.
    """
    held = contextlib.ExitStack()
    engine.register_forward_pre_hook(lambda *_: held.enter_context(variables_restored(device_index_variables(device))))
    engine.register_forward_hook(lambda *_: held.close(), always_call=True)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Context manager that sets environment variables and, on exit, restores ``os.environ``.

    Restoring also undoes all changes made to ``os.environ`` by DeepSpeed or by packages that DeepSpeed imports.
    """
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
