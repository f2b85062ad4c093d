"""Fill ``PartialState``, Accelerate's state in this process, from a Runtime.

Accelerate would fill the state from a fixed list of device types and vendors' packages. Here a Runtime has already selected and checked the
device and, in a job of several processes, joined the process group. There is only one such state in a process.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import DistributedType, is_torch_xla_available, parse_flag_from_env

from accelkit.bridges.accelerate.unsupported import refuse_lazy, refuse_strategy
from accelkit.discovery import device_table
from accelkit.errors import ContradictionError, UnsupportedError, UsageError
from accelkit.runtime import Runtime
from accelkit.runtime.process_group import backend_of
from accelkit.selection import Devices
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.overrides import overrides
from accelkit.specs.process_group import ProcessGroupOptions

DEVICE_VARIABLE = "ACCELERATE_TORCH_DEVICE"
_PRECISION = "32-true"  # Accelerate has its own autocast; support for a precision is checked when it is requested


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A request for the device of this process.

    Attributes:
        accelerator, devices, cpu: The values to pass to Runtime as the arguments of the same names.
    """

    accelerator: str | Accelerator | None = None
    devices: Devices | None = None
    cpu: bool = False


_current: tuple[Wanted, Runtime] | None = None
_made_in: tuple[int, str | None, str | None] | None = None  # identifies the process that created _current
_installed = Wanted()


def installed() -> Wanted:
    """Return the request that was passed to ``install``, or the default request if ``install`` is not in effect.

    The request applies to each ``Accelerator`` that is not created by the function ``accelkit.bridges.accelerate.accelerator``.
    """
    return _installed


def set_installed(wanted: Wanted) -> None:
    global _installed
    _installed = wanted


def current_runtime() -> Runtime:
    """Return the Runtime that Accelerate's state describes.

    Raises:
        UsageError: If no device has been selected yet.
    """
    if _current is None:
        raise UsageError("no device has been selected yet", why="install() or accelerator() selects it", hint="call install() first")
    return _current[1]


def runtime_named(name: str) -> Runtime:
    """Return this process's Runtime for the accelerator ``name``.

    If the process has no Runtime, or a Runtime for another accelerator, return a new Runtime that has not started its device.
    """
    if _current is not None and _current[1].accelerator.name == name:
        return _current[1]
    return Runtime(name, precision=_PRECISION)


def ensure_state(wanted: Wanted, process_group: Mapping[str, Any] | None = None) -> Runtime:
    """Return the Runtime of this process. The first call creates it and joins the process group.

    The first call also fills Accelerate's ``PartialState`` with the device and the rank of the Runtime. If the state has been cleared, the
    next call fills it again. A call with a different request replaces the Runtime. Unless the state has been cleared, the new Runtime must
    have the same device as the old one.

    Args:
        wanted: The requested device.
        process_group: The arguments that Accelerate would pass to ``init_process_group``. Only ``backend`` and ``timeout`` are used, and
            only if the call creates a Runtime.

    Raises:
        ContradictionError: If Accelerate had selected a device before the first call, if Accelerate's state contains a device other than
            the requested one, or if an environment variable selects another device type.
        UnsupportedError: If Accelerate cannot use the device or the strategy.
        UsageError: If a launcher forked this process from a process in which ``ensure_state`` had already been called.
        AccelkitError: If Runtime raises an error.
    """
    global _current, _made_in
    refuse_forks()
    is_filled = bool(PartialState._shared_state)
    if is_filled and _current is None:
        raise ContradictionError(
            f"Accelerate has already selected {PartialState().device} in this process",
            why="an Accelerator, PartialState or TrainingArguments object was created before the bridge was used",
            hint="call install() or accelerator() before you create any object of Accelerate or transformers",
        )
    if _current is not None and _current[0] == wanted:
        runtime = _current[1]
    else:
        runtime = Runtime(
            wanted.accelerator, devices=wanted.devices, cpu=wanted.cpu, precision=_PRECISION, process_group=_options(process_group or {})
        )
        _check(runtime)
        if is_filled and _current is not None and runtime.state.device != _current[1].state.device:
            raise ContradictionError(
                f"Accelerate uses {_current[1].state.device} in this process, but {runtime.state.device} was requested",
                why="Accelerate has one state for the whole process",
                hint="select the same accelerator everywhere, or use another process",
            )
    if not is_filled:
        if runtime.num_processes > 1 and not dist.is_initialized():
            runtime.teardown()  # end_training destroyed the group; after a teardown, the Runtime joins a new group
        PartialState._shared_state.update(describe(runtime))
    _current, _made_in = (wanted, runtime), _this_process()
    return runtime


def refuse_forks() -> None:
    """Check that no launcher forked this process from a process in which ``ensure_state`` had already been called.

    Without this check, every forked process would inherit the parent's state. All of them would use the same device, and each would train
    independently of the others.

    Raises:
        UsageError: If a launcher forked this process from such a process.
    """
    if _current is None or _made_in is None:
        return
    now = _this_process()
    if now[0] != _made_in[0] and now[1:] != _made_in[1:]:
        raise UsageError(
            f"this process (rank {now[1]} of {now[2]}) was forked from a process that uses {_current[1].device}",
            why="the selection of install() or accelerator() is valid only in one process, and a driver's state does not survive a fork",
            hint="call install() inside the function that notebook_launcher runs, or use accelkit.Runtime(devices=2).launch(function)",
        )


def _this_process() -> tuple[int, str | None, str | None]:
    """Return the process ID and the environment variables RANK and WORLD_SIZE, each of which is None if it is not set.

    If a launcher forks this process, the child has a different ID and a different RANK or WORLD_SIZE. In a DataLoader worker, only the ID
    differs.
    """
    return os.getpid(), os.environ.get("RANK"), os.environ.get("WORLD_SIZE")


def describe(runtime: Runtime) -> dict[str, Any]:
    """Return the attributes that ``PartialState`` needs for this process, such as the Runtime's device. Initialises the device."""
    device, is_alone = runtime.device, runtime.num_processes == 1
    on_host = torch.empty(0, device=device).is_cpu
    return {
        "_cpu": on_host,
        "backend": None if is_alone else backend_of(device, runtime.accelerator.process_group_backend),
        "debug": parse_flag_from_env("ACCELERATE_DEBUG_MODE"),
        "device": device,
        "distributed_type": DistributedType.NO if is_alone else DistributedType.MULTI_CPU if on_host else DistributedType.MULTI_GPU,
        "fork_launched": parse_flag_from_env("FORK_LAUNCHED", 0),
        "num_processes": runtime.num_processes,
        "process_index": runtime.process_index,
        "local_process_index": runtime.local_process_index,
    }


def _options(given: Mapping[str, Any]) -> ProcessGroupOptions:
    timeout = given.get("timeout")
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    return ProcessGroupOptions(process_group_backend=given.get("backend"), timeout=seconds)


def _check(runtime: Runtime) -> None:
    """Check that Accelerate can use the Runtime's device and strategy, and that no environment variable selects another device type.

    Raises:
        UnsupportedError: If Accelerate cannot use the device or the strategy.
        ContradictionError: If an environment variable selects another device type.
    """
    chosen = runtime.accelerator
    if overrides(chosen, Accelerator, "step_end"):
        raise refuse_lazy(chosen.name, chosen.plugin)
    if is_torch_xla_available():
        raise UnsupportedError(
            f"the bridge to Accelerate does not support {chosen.name} if torch_xla is installed",
            why="Accelerate then treats every device as a device of torch_xla",
            hint="use an environment without torch_xla",
        )
    refuse_strategy(runtime.strategy.name, chosen.name)
    if parse_flag_from_env("ACCELERATE_USE_CPU") and chosen.device_type != device_table.host_name():
        raise ContradictionError(
            f"ACCELERATE_USE_CPU={os.environ['ACCELERATE_USE_CPU']} contradicts the accelerator {chosen.name!r}",
            why="accelerate launch sets the variable for --cpu, and for use_cpu in its configuration",
            hint="unset the variable, or select the CPU",
        )
    device = os.environ.get(DEVICE_VARIABLE)
    if device and device.partition(":")[0] != chosen.device_type:
        raise ContradictionError(
            f"{DEVICE_VARIABLE}={device} contradicts the accelerator {chosen.name!r}",
            why="they select different devices",
            hint=f"unset {DEVICE_VARIABLE}, which the bridge does not need",
        )
