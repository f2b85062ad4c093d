"""What Accelerate offers and the bridge does not: refused by name, never left out in silence."""

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
    """Whether ``Accelerator`` was asked for what works on the devices only that Accelerate itself knows.

    Args:
        arguments: The arguments of ``Accelerator`` that were given, by name.
        environ: The variables, which ``accelerate launch`` sets.
        name: The accelerator's, for the error.

    Raises:
        UnsupportedError: What, and what can do it.
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
    """Whether the accelerator's, or ACCELKIT_STRATEGY's, strategy is one that Accelerate carries out.

    Raises:
        UnsupportedError: If not.
    """
    if strategy not in _STRATEGIES:
        raise UnsupportedError(
            f"Accelerate cannot train {name} with the strategy {strategy!r}",
            why=f"the bridge has {' and '.join(_STRATEGIES)}",
            hint=f"accelkit.Runtime(accelerator={name!r}, strategy={strategy!r}) does that without Accelerate",
        )


def refuse_lazy(name: str, plugin: str) -> UnsupportedError:
    """The error for a device that traces: someone has to call what ends its steps, and Accelerate does so for XLA alone."""
    return UnsupportedError(
        f"the bridge into Accelerate cannot drive {name}",
        plugin=plugin,
        why="the device traces lazily, and Accelerate ends the steps of torch_xla's devices only, in a way of its own",
        hint=f"accelkit.Runtime(accelerator={name!r}), or Accelerate without the bridge where torch_xla is installed",
    )


def _refusal(what: str, source: str, name: str) -> UnsupportedError:
    instead = _INSTEAD.get(what, "leave it out")
    return UnsupportedError(
        f"{what} inside Accelerate is not there for {name}",
        why=f"{source} asks for it, and the bridge has one device, DDP, fp16 and bf16",
        hint=instead if instead == "leave it out" else f"{instead} does that without Accelerate, or leave it out",
    )
