"""``install()``: every ``Accelerator`` of this process is on a plugin's device, whoever makes it."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import accelerate
import torch
from accelerate.state import PartialState

from accelkit.bridges.accelerate.accelerator_class import Bridged, bridged_class, keeping_parameters
from accelkit.bridges.accelerate.state import DEVICE_VARIABLE, Wanted, ensure_state, installed, refuse_forks, set_installed
from accelkit.errors import ContradictionError
from accelkit.runtime import Runtime
from accelkit.selection import Devices
from accelkit.specs.accelerator import Accelerator

_make_accelerator, _make_state, _move = accelerate.Accelerator.__init__, PartialState.__init__, torch.nn.Module.to
_variable_before: str | None = None
_is_installed = False


def install(name: str | Accelerator | None = None, *, devices: Devices | None = None) -> Runtime:
    """Put every ``accelerate.Accelerator`` and ``PartialState`` that is made from now on on a plugin's device.

    Selects, loads and checks the device at once, and joins the job's processes. ``Accelerator.__init__`` and ``PartialState.__init__``
    are replaced, ``torch.nn.Module.to`` keeps Parameters when a module leaves the host, and ``ACCELERATE_TORCH_DEVICE`` is set, which
    transformers reads, until ``uninstall``. Call it before anything of Accelerate is made.

    Args:
        name, devices: As of ``accelerator``.

    Returns:
        The Runtime that knows the device, and why.

    Raises:
        ContradictionError: If it is installed for something else, or Accelerate has chosen a device already.
        AccelkitError: As Runtime does.
    """
    global _is_installed, _variable_before
    wanted = Wanted(name, devices)
    if _is_installed and wanted != installed():
        raise ContradictionError(
            f"install({name!r}) after install({installed().accelerator!r})", why="one device a process", hint="call uninstall() first"
        )
    runtime = ensure_state(wanted)
    if not _is_installed:
        _is_installed, _variable_before = True, os.environ.get(DEVICE_VARIABLE)
        os.environ[DEVICE_VARIABLE] = str(runtime.device)
        set_installed(wanted)
        accelerate.Accelerator.__init__, PartialState.__init__ = _bridged_accelerator, _filled_state
        torch.nn.Module.to = _move_keeping_parameters  # type: ignore[method-assign,assignment]
    return runtime


def uninstall() -> None:
    """Undo ``install``. What was made meanwhile goes on; an ``Accelerator`` that is made afterwards finds the state that there is."""
    global _is_installed
    if not _is_installed:
        return
    accelerate.Accelerator.__init__, PartialState.__init__ = _make_accelerator, _make_state
    torch.nn.Module.to = _move  # type: ignore[method-assign]
    if _variable_before is None:
        os.environ.pop(DEVICE_VARIABLE, None)
    else:
        os.environ[DEVICE_VARIABLE] = _variable_before
    set_installed(Wanted())
    _is_installed = False


def _bridged_accelerator(self: Any, *arguments: Any, **named: Any) -> None:
    """Instead of ``Accelerator.__init__``. The class of the instance becomes one that inherits from Bridged too."""
    if isinstance(self, Bridged):
        _make_accelerator(self, *arguments, **named)
        return
    cls: Any = type(self)
    self.__class__ = bridged_class(cls)
    Bridged.__init__(self, *arguments, **named)


def _filled_state(self: Any, cpu: bool = False, **named: Any) -> None:
    """Instead of ``PartialState.__init__``, which takes a state that is filled as it is."""
    refuse_forks()
    if not PartialState._shared_state:
        ensure_state(dataclasses.replace(installed(), cpu=cpu), named)
    _make_state(self, cpu, **named)


def _move_keeping_parameters(self: torch.nn.Module, *arguments: Any, **named: Any) -> torch.nn.Module:
    """Instead of ``Module.to``, which Trainer calls itself: a module that leaves the host keeps its Parameters, and what is tied."""
    if any(not parameter.is_cpu for parameter in self.parameters()):
        return _move(self, *arguments, **named)
    with keeping_parameters():
        return _move(self, *arguments, **named)
