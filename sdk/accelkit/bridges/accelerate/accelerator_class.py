"""The ``accelerate.Accelerator`` that drives a plugin's device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Iterator, Sequence
from typing import Any

import accelerate
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, patch_environment

from accelkit.bridges.accelerate import random_state
from accelkit.bridges.accelerate.precision import check_precision, make_scaler, wanted_precision
from accelkit.bridges.accelerate.state import Wanted, ensure_state, installed, runtime_named
from accelkit.bridges.accelerate.unsupported import refuse_arguments
from accelkit.discovery import device_table
from accelkit.errors import PrepareError, UnsupportedError
from accelkit.runtime import Runtime
from accelkit.selection import Devices
from accelkit.specs.accelerator import Accelerator

_FP16 = "fp16"
_signature = inspect.signature(accelerate.Accelerator.__init__)


def accelerator(
    name: str | Accelerator | None = None,
    *,
    devices: Devices | None = None,
    cpu: bool = False,
    mixed_precision: str | None = None,
    **arguments: Any,
) -> accelerate.Accelerator:
    """An ``accelerate.Accelerator`` on the device of a plugin. Selects, loads and checks the device, and joins the job's processes.

    Args:
        name: A name, ``dist:name``, ``torch:<device_type>``, ``auto`` or an instance; None for ACCELKIT_ACCELERATOR, then auto.
        devices, cpu: As for Runtime. By default the first device, and in a job this process's own.
        mixed_precision: ``no``, ``fp16`` or ``bf16``; None for ACCELKIT_PRECISION, then ACCELERATE_MIXED_PRECISION.
        arguments: All other arguments of ``accelerate.Accelerator``.

    Raises:
        UnsupportedError: What the device, or the bridge, cannot do.
        ContradictionError: If Accelerate, or one of its variables, says another device.
        AccelkitError: As Runtime does.
    """
    return Bridged(cpu=cpu, mixed_precision=mixed_precision, **arguments, _wanted=Wanted(name, devices))


class Bridged(accelerate.Accelerator):  # type: ignore[misc] # accelerate has no types
    """What Accelerate decides from its list of device types is decided by the plugin here; all else is Accelerate's."""

    runtime: Runtime
    """Which device, and why: it has the plugin's accelerator, the decision and the process group."""

    def __init__(self, *arguments: Any, _wanted: Wanted | None = None, **named: Any) -> None:
        given = _signature.bind_partial(self, *arguments, **named).arguments
        del given["self"]
        handlers = [handler for handler in given.get("kwargs_handlers") or () if isinstance(handler, InitProcessGroupKwargs)]
        self.runtime = ensure_state(
            dataclasses.replace(_wanted or installed(), cpu=bool(given.get("cpu"))), handlers[0].to_kwargs() if handlers else None
        )
        refuse_arguments(given, os.environ, self.runtime.accelerator.name)
        already = AcceleratorState._shared_state.get("_mixed_precision")
        mixed = already if already is not None and given.get("mixed_precision") is None else wanted_precision(given.get("mixed_precision"))
        check_precision(mixed, self.runtime)
        with _withheld(mixed, already):
            super().__init__(**given | {"mixed_precision": "no" if mixed == _FP16 and already in (None, _FP16) else mixed})
        if mixed == _FP16:
            self.native_amp = True
            self.scaler = make_scaler(self.runtime, self.scaler_handler.to_kwargs() if self.scaler_handler is not None else {})
        self.register_save_state_pre_hook(random_state.save_hook)
        self.register_load_state_pre_hook(random_state.load_hook)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As Accelerate's pickles, without the Runtime: the copy has that of the process that it is made in."""
        cls = type(self)
        state = {name: value for name, value in vars(self).items() if name != "runtime"}
        return _restored, (getattr(cls, "_accelkit_original", cls), self.runtime.accelerator.name), state

    def prepare(self, *arguments: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """Accelerate's, with all modules placed first, so that the state of optimizers follows them whatever the order.

        Raises:
            PrepareError: If an optimizer has parameters elsewhere: it was made before its model was moved by ``Module.to``.
        """
        if device_placement is not None and len(device_placement) != len(arguments):
            return super().prepare(*arguments, device_placement=device_placement)  # its error
        order = sorted(range(len(arguments)), key=lambda index: not isinstance(arguments[index], torch.nn.Module))
        placements = None if device_placement is None else [device_placement[index] for index in order]
        result = super().prepare(*(arguments[index] for index in order), device_placement=placements)
        found = dict(zip(order, result if len(order) > 1 else (result,), strict=True))
        for index, thing in enumerate(arguments):
            placed = self.device_placement if device_placement is None or device_placement[index] is None else device_placement[index]
            if isinstance(thing, torch.optim.Optimizer) and placed:
                self._check_optimizer(thing)
        return tuple(found[index] for index in range(len(arguments))) if len(order) > 1 else result

    def prepare_model(self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> torch.nn.Module:
        """Accelerate's, with parameters that keep their identity, so that optimizers still know them and tied ones stay tied.

        Raises:
            UnsupportedError: If the model is on another accelerator than this one's.
        """
        for parameter in model.parameters():
            if not (parameter.is_cpu or parameter.is_meta) and parameter.device.type != self.device.type:
                raise UnsupportedError(
                    f"{type(model).__name__} is on {parameter.device}, and the accelerator is {self.runtime.accelerator.name}",
                    why="someone moved it there: a program that looks for devices by itself found another one",
                    hint="make the model on the host, and hide the other devices",
                )
        with contextlib.ExitStack() as stack:
            stack.enter_context(keeping_parameters())
            if self.use_distributed and self.device.index not in (None, self.local_process_index):
                if self.verify_device_map(model):
                    raise UnsupportedError(
                        f"{type(model).__name__} is spread over devices by a device_map", why="this job has several processes already"
                    )
                stack.enter_context(patch_environment(ACCELERATE_BYPASS_DEVICE_MAP="true"))  # else DDP is given the local rank as device
            prepared: torch.nn.Module = super().prepare_model(model, device_placement=device_placement, evaluation_mode=evaluation_mode)
        return prepared

    def load_state(self, input_dir: str | None = None, load_kwargs: dict[str, Any] | None = None, **load_model_func_kwargs: Any) -> None:
        """Accelerate's, through main memory: safetensors reads to the devices only that it knows."""
        super().load_state(input_dir, load_kwargs, **{"map_location": device_table.host_name()} | load_model_func_kwargs)

    def free_memory(self, *objects: Any) -> Any:
        """Accelerate's, and the device's allocator gives its unused memory back too."""
        freed = super().free_memory(*objects)
        self.runtime.accelerator.empty_cache()
        return freed

    def _check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.device.type != self.device.type:
                    raise PrepareError(
                        f"{type(optimizer).__name__} has parameters on {parameter.device}, and the accelerator is {self.device}",
                        why="they are of a model that was not prepared, or that was moved after the optimizer was made",
                        hint="prepare the model in the same call, and leave moving it to prepare",
                    )


@functools.cache
def bridged_class(cls: type) -> type:
    """``cls``, a subclass of the user's of ``accelerate.Accelerator``, as a subclass of Bridged too."""
    if issubclass(cls, Bridged):
        return cls
    if cls is accelerate.Accelerator:
        return Bridged
    attributes = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_accelkit_original": cls}
    return type(cls.__name__, (cls, Bridged), attributes)


def _restored(cls: type, name: str) -> Any:
    """For pickle: an instance that has its Runtime and nothing else. Loads the plugin, so that torch knows the device's name."""
    made: Any = bridged_class(cls)
    instance = made.__new__(made)
    instance.runtime = runtime_named(name)
    return instance


@contextlib.contextmanager
def keeping_parameters() -> Iterator[None]:
    """``Module.to`` fills the very same Parameters.

    On some devices it would make new ones: optimizers would go on training the old ones, and what is tied would be tied no more.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


@contextlib.contextmanager
def _withheld(mixed: str, already: str | None) -> Iterator[None]:
    """While Accelerator is made: do not let it see fp16, which it would refuse, or on the CPU leave out, by the name of the device."""
    state = AcceleratorState._shared_state
    if mixed != _FP16 or already not in (None, _FP16):
        yield
        return
    if already:
        state["_mixed_precision"] = "no"
    try:
        yield
    finally:
        if state:
            state["_mixed_precision"] = _FP16
