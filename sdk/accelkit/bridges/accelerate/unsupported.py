"""Features of Accelerate that the bridge does not support. Requesting one raises an error that names it; none is silently ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelkit.errors import UnsupportedError

_ARGUMENTS = {
    "deepspeed_plugin": "DeepSpeed",
    "deepspeed_plugins": "DeepSpeed",
    "fsdp_plugin": "FSDP",
    "megatron_lm_plugin": "Megatron-LM",
    "torch_tp_plugin": "tensor parallelism",
    "parallelism_config": "ParallelismConfig",
}
_VARIABLES = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "ParallelismConfig",
    "ACCELERATE_USE_SAGEMAKER": "SageMaker's data parallelism",
    "ACCELERATE_CPU_AFFINITY": "setting the CPU affinity",
}
_INSTEAD = {"DeepSpeed": 'accelkit.Runtime(strategy="deepspeed")', "FSDP": 'accelkit.Runtime(strategy="fsdp")'}
_STRATEGIES = ("single_device", "ddp")


def refuse_arguments(arguments: Mapping[str, Any], environ: Mapping[str, str], name: str) -> None:
    """Check that no feature was requested from ``Accelerator`` that works only on the devices that Accelerate itself supports.

    Args:
        arguments: The given arguments of ``Accelerator``, by name.
        environ: The environment variables, some of which ``accelerate launch`` sets.
        name: The name of the accelerator, for the error.

    Raises:
        UnsupportedError: If such a feature was requested. The text names the feature and an alternative.
    """
    for argument, what in _ARGUMENTS.items():
        if arguments.get(argument) is not None:
            raise _refusal(what, f"{argument}=", name)
    for variable, what in _VARIABLES.items():
        if environ.get(variable, "").lower() in ("1", "true", "yes", "on", "y", "t"):
            raise _refusal(what, f"{variable}={environ[variable]}", name)
    for handler in arguments.get("kwargs_handlers") or ():
        if "Recipe" in type(handler).__name__:
            raise _refusal("fp8", type(handler).__name__, name)


def refuse_strategy(strategy: str, name: str) -> None:
    """Check that Accelerate can train with the strategy that the accelerator or ACCELKIT_STRATEGY selects.

    Raises:
        UnsupportedError: If it cannot.
    """
    if strategy not in _STRATEGIES:
        raise UnsupportedError(
            f"the bridge to Accelerate does not support strategy {strategy!r}",
            why=f"it supports {' and '.join(_STRATEGIES)}",
            hint=f"use accelkit.Runtime(accelerator={name!r}, strategy={strategy!r}) without Accelerate",
        )


def refuse_lazy(name: str, plugin: str) -> UnsupportedError:
    """Return the error for a device that traces lazily, and so needs a call at the end of each step. Accelerate makes it only for XLA."""
    return UnsupportedError(
        f"the bridge to Accelerate does not support {name}",
        plugin=plugin,
        why="the device traces lazily, and Accelerate marks the end of steps only for devices of torch_xla",
        hint=f"use accelkit.Runtime(accelerator={name!r}), or use Accelerate with torch_xla, without the bridge",
    )


def _refusal(what: str, source: str, name: str) -> UnsupportedError:
    instead = _INSTEAD.get(what)
    return UnsupportedError(
        f"the bridge to Accelerate does not support {what} for {name}",
        why=f"{source} requests it, but the bridge supports only single devices, DDP, fp16 and bf16",
        hint=f"use {instead} without Accelerate, or remove {source}" if instead else f"remove {source}",
    )
