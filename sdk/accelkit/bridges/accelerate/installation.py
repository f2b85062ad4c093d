"""``install()`` and ``uninstall()``. Every ``Accelerator`` that any code creates between the two calls uses a plugin's device."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import accelerate
import torch
from accelerate.state import PartialState

from accelkit.bridges.accelerate import deepspeed
from accelkit.bridges.accelerate.accelerator_class import Bridged, bridged_class
from accelkit.bridges.accelerate.state import DEVICE_VARIABLE, Wanted, ensure_state, installed, refuse_forks, set_installed
from accelkit.bridges.accelerate.tensor_parallel import accept_meshes, restore_meshes
from accelkit.bridges.parameter_swapping import keeping_parameters
from accelkit.errors import ContradictionError
from accelkit.runtime import Runtime
from accelkit.selection import Devices
from accelkit.specs.accelerator import Accelerator

_make_accelerator, _make_state, _move = accelerate.Accelerator.__init__, PartialState.__init__, torch.nn.Module.to
_variable_before: str | None = None
_is_installed = False


def install(name: str | Accelerator | None = None, *, devices: Devices | None = None) -> Runtime:
    """Make all new ``accelerate.Accelerator`` and ``PartialState`` objects use a plugin's device.

    Immediately selects, loads and checks the device, and joins the process group of the job. Replaces ``Accelerator.__init__`` and
    ``PartialState.__init__``, and sets ``ACCELERATE_TORCH_DEVICE``, which transformers reads. Also makes ``torch.nn.Module.to`` keep the
    Parameter objects of a module that leaves the host, and makes ``init_device_mesh`` accept the device types of plugins. These changes
    last until ``uninstall`` is called. Call ``install`` before creating any object of Accelerate.

    Args:
        name, devices: The accelerator and its devices, as for the function ``accelerator`` of this package.

    Returns:
        The Runtime of the device. Its attribute ``decision`` says why this device was selected.

    Raises:
        ContradictionError: If the bridge is already installed with other arguments, Accelerate has already selected a device, or a variable
            such as ``ACCELERATE_USE_CPU`` contradicts the accelerator.
        UnsupportedError: If Accelerate does not support the device, or does not support the strategy selected by the accelerator or by
            ACCELKIT_STRATEGY.
        UsageError: If this process was forked by a launcher after its parent process had selected a device.
        AccelkitError: If Runtime raises an error.
    """
    global _is_installed, _variable_before
    wanted = Wanted(name, devices)
    if _is_installed and wanted != installed():
        raise ContradictionError(
            f"install({name!r}) was called after install({installed().accelerator!r})",
            why="a process uses one device",
            hint="call uninstall() first",
        )
    runtime = ensure_state(wanted)
    if not _is_installed:
        _is_installed, _variable_before = True, os.environ.get(DEVICE_VARIABLE)
        os.environ[DEVICE_VARIABLE] = str(runtime.device)
        set_installed(wanted)
        deepspeed.expect(runtime.accelerator)
        accelerate.Accelerator.__init__, PartialState.__init__ = _bridged_accelerator, _filled_state
        torch.nn.Module.to = _move_keeping_parameters  # type: ignore[method-assign,assignment]
        accept_meshes()
    return runtime


def uninstall() -> None:
    """Undo ``install``. Existing objects continue to work.

    An ``Accelerator`` created afterwards uses the device that Accelerate's shared state still contains.
    """
    global _is_installed
    if not _is_installed:
        return
    accelerate.Accelerator.__init__, PartialState.__init__ = _make_accelerator, _make_state
    torch.nn.Module.to = _move  # type: ignore[method-assign]
    restore_meshes()
    deepspeed.forget()
    if _variable_before is None:
        os.environ.pop(DEVICE_VARIABLE, None)
    else:
        os.environ[DEVICE_VARIABLE] = _variable_before
    set_installed(Wanted())
    _is_installed = False


def _bridged_accelerator(self: Any, *arguments: Any, **named: Any) -> None:
    """Initialise an Accelerator, in place of ``Accelerator.__init__``.

    Changes the class of the object to a class that inherits from both the original class and Bridged.
    """
    if isinstance(self, Bridged):
        _make_accelerator(self, *arguments, **named)
        return
    cls: Any = type(self)
    self.__class__ = bridged_class(cls)
    Bridged.__init__(self, *arguments, **named)


def _filled_state(self: Any, cpu: bool = False, **named: Any) -> None:
    """Initialise a PartialState, in place of ``PartialState.__init__``.

    If Accelerate's shared state in this process is empty, it is filled from a Runtime before the original ``__init__`` is called. The
    original ``__init__`` does not change a state that is already filled.
    """
    refuse_forks()
    if not PartialState._shared_state:
        ensure_state(dataclasses.replace(installed(), cpu=cpu), named)
    _make_state(self, cpu, **named)


def _move_keeping_parameters(self: torch.nn.Module, *arguments: Any, **named: Any) -> torch.nn.Module:
    """Move a module. This function replaces ``Module.to``, which ``transformers.Trainer`` calls directly.

    A module that leaves the host keeps its Parameter objects, and tied parameters stay tied.
    """
    if deepspeed.is_used() or any(not parameter.is_cpu for parameter in self.parameters()):  # deepspeed.initialize keeps Parameters
        return _move(self, *arguments, **named)
    with keeping_parameters():
        return _move(self, *arguments, **named)
