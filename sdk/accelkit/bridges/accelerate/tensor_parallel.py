"""Tensor parallelism inside Accelerate, on a plugin's device.

transformers splits a model when it loads the model. Accelerate gives the same batches to all processes of a tensor-parallel group. Both
libraries make device meshes with torch's ``init_device_mesh``, which refuses some device types.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import accelerate
import torch
from accelerate import ParallelismConfig
from packaging.version import Version
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from accelkit.bridges.accelerate import deepspeed
from accelkit.bridges.accelerate.unsupported import is_sharding_requested, parallelism
from accelkit.bridges.checked_strategy import checked_strategy
from accelkit.bridges.meshes import meshes_of_any_device_type
from accelkit.discovery import device_table
from accelkit.errors import ContradictionError, UnsupportedError
from accelkit.runtime import Runtime

OLDEST = "1.15.0"
_LOAD = "DistributedConfig(tp_size={config.tp_size}, fsdp_size={config.dp_shard_size})"
_meshes: contextlib.ExitStack | None = None


def accept_meshes() -> None:
    """Make ``init_device_mesh`` accept the device types of plugins until ``restore_meshes`` is called.

    This applies to the whole process, because transformers and the user's own code call ``init_device_mesh`` too.
    """
    global _meshes
    if _meshes is None:
        _meshes = contextlib.ExitStack()
        _meshes.enter_context(meshes_of_any_device_type())


def restore_meshes() -> None:
    """Undo ``accept_meshes``."""
    global _meshes
    if _meshes is not None:
        _meshes.close()
        _meshes = None


def set_up_tensor_parallelism(arguments: Mapping[str, Any], environ: Mapping[str, str], runtime: Runtime, mixed_precision: str) -> None:
    """If tensor parallelism was requested from ``Accelerator``, check that the bridge supports the request, and call ``accept_meshes``.

    If tensor parallelism was not requested, this function does nothing.

    Args:
        arguments: The arguments that were passed to ``Accelerator``, by name.
        environ: The environment variables, including those that ``accelerate launch`` sets.
        runtime: The Runtime of the device.
        mixed_precision: Accelerate's name for the precision, such as ``fp16``.

    Raises:
        UnsupportedError: If the bridge does not support the request, or if the device lacks what tensor parallelism needs.
        ContradictionError: If the ParallelismConfig requests more or fewer devices than the job has processes.
    """
    config = parallelism(arguments, environ)
    if config is None or config.tp_size == 1:
        return
    name = runtime.accelerator.name
    if Version(accelerate.__version__) < Version(OLDEST):
        why = f"accelerate {accelerate.__version__} cannot clip the gradients of a model that is only partly split"
        hint = f"install accelerate {OLDEST} or newer"
    elif runtime.accelerator.device_type == device_table.host_name():
        why = "Accelerate accepts a ParallelismConfig only on accelerators"
        hint = "use accelkit.Runtime(strategy='parallel') without Accelerate"
    elif mixed_precision == "fp16":
        why = "torch's gradient scaler does not accept the gradients of a model that is only partly split"
        hint = "use mixed_precision='bf16'"
    elif is_sharding_requested(arguments, environ):
        why = "Accelerate's FSDP splits such a model with a class that transformers no longer has"
        hint = f"request no FSDP, and load the model with {_LOAD.format(config=config)}"
    elif deepspeed.is_requested(arguments, environ):
        why = "DeepSpeed splits models in its own way, which is not tested on the devices of plugins"
        hint = "remove deepspeed_plugin=, or use accelkit.Runtime(strategy='parallel')"
    else:
        if config.total_size != (processes := runtime.num_processes):
            raise ContradictionError(
                f"ParallelismConfig requests {config.total_size} devices, but the job has {processes} process{'es' * (processes > 1)}",
                why="each process uses one device",
                hint=f"start {config.total_size} processes, or change the sizes",
            )
        checked_strategy("parallel", runtime.accelerator)
        accept_meshes()
        return
    what = f"the bridge to Accelerate does not support this request for tensor parallelism on {name}"
    raise UnsupportedError(what, why=why, hint=hint)


def check_split_model(model: torch.nn.Module, config: ParallelismConfig | None, device: torch.device) -> None:
    """Check that Accelerate can train a model with tensor parallelism.

    Args:
        model: The model that is prepared for training.
        config: Accelerate's ParallelismConfig. If it is None or has no tensor parallelism, nothing is checked.
        device: The device of this process.

    Raises:
        UnsupportedError: If this process's part of the model is not on ``device``, or if processes train on different samples but nothing
            would average their gradients.
    """
    if config is None or not config.tp_enabled:
        return
    for parameter in model.parameters():
        if isinstance(parameter, DTensor) and (found := parameter.to_local().device) != device:
            raise UnsupportedError(
                f"part of {type(model).__name__} is on {found}, but this process uses {device}",
                why="Accelerate cannot move a split model, and transformers loads it to the device whose number is LOCAL_RANK",
                hint="select the devices in ascending order from 0, such as devices=2",
            )
    if config.data_parallel_size > 1 and not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise UnsupportedError(
            f"{type(model).__name__} is not sharded over the {config.data_parallel_size} groups of processes with different samples",
            why="with tp_size, Accelerate neither shards a model nor averages its gradients",
            hint=f"load the model with {_LOAD.format(config=config)}, or call torch's fully_shard",
        )


def refuse_state(config: ParallelismConfig | None, method: str) -> None:
    """Check that Accelerate can save and load the state of models under this configuration.

    Args:
        config: Accelerate's ParallelismConfig, or None.
        method: The name of the method that saves or loads the state, for the error.

    Raises:
        UnsupportedError: If the configuration enables tensor parallelism.
    """
    if config is not None and config.tp_enabled:
        raise UnsupportedError(
            f"the bridge to Accelerate does not support {method} with tensor parallelism",
            why="Accelerate would save only the part of the model that one process has",
            hint="save the weights with model.save_pretrained(), and optimizers with torch.distributed.checkpoint",
        )
