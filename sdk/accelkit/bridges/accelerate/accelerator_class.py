"""An ``accelerate.Accelerator`` that uses a plugin's device."""

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
from accelerate import parallelism_config
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, patch_environment

from accelkit.bridges.accelerate import deepspeed, random_state
from accelkit.bridges.accelerate.precision import check_precision, make_scaler, wanted_precision
from accelkit.bridges.accelerate.sharding import is_sharding, sharding_on
from accelkit.bridges.accelerate.state import Wanted, ensure_state, installed, runtime_named
from accelkit.bridges.accelerate.tensor_parallel import check_split_model, refuse_state, set_up_tensor_parallelism
from accelkit.bridges.accelerate.unsupported import refuse_arguments, refuse_sharding
from accelkit.bridges.meshes import meshes_of_any_device_type
from accelkit.bridges.parameter_swapping import keeping_parameters
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
    """Create an ``accelerate.Accelerator`` on a plugin's device.

    Selects, loads and checks the device, and joins the process group of the job.

    Args:
        name: The accelerator: a name, ``dist:name``, ``torch:<device_type>``, ``auto`` or an instance. None uses ACCELKIT_ACCELERATOR, or
            ``auto`` if the variable is not set.
        devices: The devices to use, as for Runtime. The default is the first device, or this process's own device in a job.
        cpu: Whether to use the CPU, as for Runtime.
        mixed_precision: The precision, ``no``, ``fp16`` or ``bf16``. None uses the precision of an existing Accelerator of this process, or
            else ACCELKIT_PRECISION, ACCELERATE_MIXED_PRECISION or ``no``, in this order.
        arguments: All other arguments of ``accelerate.Accelerator``.

    Raises:
        UnsupportedError: If the device or the bridge does not support an argument.
        ContradictionError: If the request contradicts an environment variable, the number of processes, or Accelerate's state in this
            process. For example, Accelerate may already use a different device.
        AccelkitError: If Runtime raises an error.
    """
    return Bridged(cpu=cpu, mixed_precision=mixed_precision, **arguments, _wanted=Wanted(name, devices))


class Bridged(accelerate.Accelerator):  # type: ignore[misc] # accelerate has no types
    """An ``Accelerator`` that calls the plugin where Accelerate would consult its list of device types.

    Everything else is inherited from Accelerate.
    """

    runtime: Runtime
    """The Runtime of the device. It has the plugin's accelerator, the decision that selected this accelerator, and the process group."""

    def __init__(self, *arguments: Any, _wanted: Wanted | None = None, **named: Any) -> None:
        given = _signature.bind_partial(self, *arguments, **named).arguments
        del given["self"]
        handlers = [handler for handler in given.get("kwargs_handlers") or () if isinstance(handler, InitProcessGroupKwargs)]
        self.runtime = ensure_state(
            dataclasses.replace(_wanted or installed(), cpu=bool(given.get("cpu"))), handlers[0].to_kwargs() if handlers else None
        )
        refuse_arguments(given, os.environ, self.runtime.accelerator.name)
        is_deepspeed = deepspeed.is_requested(given, os.environ)
        if is_deepspeed:
            deepspeed.start(self.runtime.accelerator)
        already = AcceleratorState._shared_state.get("_mixed_precision")
        mixed = already if already is not None and given.get("mixed_precision") is None else wanted_precision(given.get("mixed_precision"))
        check_precision(mixed, self.runtime)
        refuse_sharding(given, os.environ, self.runtime, mixed)
        set_up_tensor_parallelism(given, os.environ, self.runtime, mixed)
        with _withheld("no" if is_deepspeed else mixed, already), meshes_of_any_device_type(parallelism_config):
            is_withheld = mixed == _FP16 and already in (None, _FP16) and not is_deepspeed
            super().__init__(**given | {"mixed_precision": "no" if is_withheld else mixed})
        if mixed == _FP16 and not is_deepspeed:
            self.native_amp = True
            self.scaler = make_scaler(self.runtime, self.scaler_handler.to_kwargs() if self.scaler_handler is not None else {})
        self.register_save_state_pre_hook(random_state.save_hook)
        self.register_load_state_pre_hook(random_state.load_hook)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the object as Accelerate does, but without the Runtime. The copy uses the Runtime of the process that unpickles it."""
        cls = type(self)
        state = {name: value for name, value in vars(self).items() if name != "runtime"}
        return _restored, (getattr(cls, "_accelkit_original", cls), self.runtime.accelerator.name), state

    def prepare(self, *arguments: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """Prepare objects as Accelerate does, but begin with the modules, so that optimizers may precede their models in the arguments.

        Raises:
            PrepareError: If an optimizer has parameters on a device of another type, because its model was not prepared, or was moved after
                the optimizer was created.
        """
        if device_placement is not None and len(device_placement) != len(arguments):
            return super().prepare(*arguments, device_placement=device_placement)  # raises Accelerate's error
        order = sorted(range(len(arguments)), key=lambda index: not isinstance(arguments[index], torch.nn.Module))
        placements = None if device_placement is None else [device_placement[index] for index in order]
        with deepspeed.on(self.device) if deepspeed.is_used() else sharding_on(self.device) if is_sharding() else contextlib.nullcontext():
            result = super().prepare(*(arguments[index] for index in order), device_placement=placements)
        found = dict(zip(order, result if len(order) > 1 else (result,), strict=True))
        for index, thing in enumerate(arguments):
            placed = self.device_placement if device_placement is None or device_placement[index] is None else device_placement[index]
            is_whole = not (is_sharding() or deepspeed.is_used())  # otherwise, parameters may stay on the host
            if isinstance(thing, torch.optim.Optimizer) and placed and is_whole:
                self._check_optimizer(thing)
        return tuple(found[index] for index in range(len(arguments))) if len(order) > 1 else result

    def prepare_model(self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> torch.nn.Module:
        """Prepare a model as Accelerate does, but keep its Parameter objects.

        Optimizers therefore still refer to these objects, and tied parameters stay tied.

        Raises:
            UnsupportedError: If the model is on another accelerator, or if Accelerate cannot train it with the tensor parallelism of the
                ``parallelism_config``.
        """
        for parameter in model.parameters():
            if not (parameter.is_cpu or parameter.is_meta) and parameter.device.type != self.device.type:
                raise UnsupportedError(
                    f"{type(model).__name__} is on {parameter.device}, but the accelerator is {self.runtime.accelerator.name}",
                    why="other code moved it there, probably because it selects a device by itself",
                    hint="create the model on the CPU, and hide the other devices",
                )
        if not evaluation_mode:
            check_split_model(model, self.parallelism_config, self.device)
        with contextlib.ExitStack() as stack:
            stack.enter_context(keeping_parameters())
            is_other_index = self.use_distributed and self.device.index not in (None, self.local_process_index)
            if is_other_index and not self.verify_device_map(model):  # Accelerate refuses a model that has a device_map
                stack.enter_context(
                    patch_environment(ACCELERATE_BYPASS_DEVICE_MAP="true")
                )  # otherwise, Accelerate passes the local rank to DDP as the device
            prepared: torch.nn.Module = super().prepare_model(model, device_placement=device_placement, evaluation_mode=evaluation_mode)
        return prepared

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True, **save_model_func_kwargs: Any) -> str:
        """Save state as Accelerate does, and return the folder that contains it.

        Raises:
            UnsupportedError: If tensor parallelism is used.
        """
        refuse_state(self.parallelism_config, "save_state")
        folder: str = super().save_state(output_dir, safe_serialization, **save_model_func_kwargs)
        return folder

    def load_state(self, input_dir: str | None = None, load_kwargs: dict[str, Any] | None = None, **load_model_func_kwargs: Any) -> None:
        """Load state as Accelerate does, but read it into main memory first, because safetensors supports only some device types.

        The keyword argument ``map_location`` overrides this. With DeepSpeed, this method loads the state exactly as Accelerate does.

        Raises:
            UnsupportedError: If tensor parallelism is used.
        """
        refuse_state(self.parallelism_config, "load_state")
        through_host = {} if deepspeed.is_used() else {"map_location": device_table.host_name()}
        super().load_state(input_dir, load_kwargs, **through_host | load_model_func_kwargs)

    def free_memory(self, *objects: Any) -> Any:
        """Free memory as Accelerate does, and also empty the cache of the device's allocator. Return what Accelerate's method returns."""
        freed = super().free_memory(*objects)
        self.runtime.empty_cache()
        return freed

    def _check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.device.type != self.device.type:
                    raise PrepareError(
                        f"{type(optimizer).__name__} has parameters on {parameter.device}, but the accelerator is {self.device}",
                        why="their model was not prepared, or was moved after the optimizer was created",
                        hint="prepare the model and the optimizer in the same call, and let prepare move the model",
                    )


@functools.cache
def bridged_class(cls: type) -> type:
    """Return a class that inherits from Bridged and from ``cls``. ``cls`` is ``accelerate.Accelerator`` or a user's subclass of it."""
    if issubclass(cls, Bridged):
        return cls
    if cls is accelerate.Accelerator:
        return Bridged
    attributes = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_accelkit_original": cls}
    return type(cls.__name__, (cls, Bridged), attributes)


def _restored(cls: type, name: str) -> Any:
    """Create an instance of ``bridged_class(cls)`` whose only attribute is a Runtime on the accelerator ``name``.

    pickle calls this function, and then restores the other attributes. The Runtime loads the plugin, so that torch knows the device type.
    """
    made: Any = bridged_class(cls)
    instance = made.__new__(made)
    instance.runtime = runtime_named(name)
    return instance


@contextlib.contextmanager
def _withheld(mixed: str, already: str | None) -> Iterator[None]:
    """Keep fp16 out of Accelerate's shared state inside the ``with`` block, and write fp16 there when the block ends.

    The block creates an Accelerator. Accelerate would refuse fp16 on device types that it does not know, and would ignore fp16 on the CPU.
    Does nothing if ``mixed`` or ``already`` is a precision other than fp16.

    Args:
        mixed: The precision of the new Accelerator.
        already: The precision in Accelerate's shared state, or None if the shared state has no precision.
    """
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
