"""Features of Accelerate that the bridge does not support. A request for such a feature raises an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate import ParallelismConfig
from accelerate.state import AcceleratorState

from accelkit.bridges.accelerate.sharding import is_sharding
from accelkit.bridges.checked_strategy import checked_strategy
from accelkit.discovery import device_table
from accelkit.errors import ContradictionError, UnsupportedError
from accelkit.runtime import Runtime

_ARGUMENTS = {
    "megatron_lm_plugin": "Megatron-LM",
}
_VARIABLES = {
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_SAGEMAKER": "SageMaker's data parallelism",
    "ACCELERATE_CPU_AFFINITY": "setting the CPU affinity",
}
_SIZES = {
    "cp_size": ("context parallelism", "torch's context_parallel splits only the attention operators of CUDA, not those of other devices"),
    "sp_size": (
        "sequence parallelism",
        "Accelerate leaves sequence parallelism to DeepSpeed, and this combination is not tested on the devices of plugins",
    ),
}
"""The fields of ``ParallelismConfig`` that must be 1. For each field: the feature that any other value requests, and the reason why this
feature is refused."""
_STRATEGIES = ("single_device", "ddp")


def refuse_arguments(arguments: Mapping[str, Any], environ: Mapping[str, str], name: str) -> None:
    """Check that ``Accelerator`` was not asked for a feature that the bridge does not support. FSDP is checked by ``refuse_sharding``.

    Args:
        arguments: The arguments that were passed to ``Accelerator``, by name.
        environ: The environment variables, some of which ``accelerate launch`` sets.
        name: The name of the accelerator, for the error.

    Raises:
        UnsupportedError: If such a feature was requested. The error names the feature and says what to change.
    """
    for argument, what in _ARGUMENTS.items():
        if arguments.get(argument) is not None:
            raise _refusal(what, f"{argument}=", name)
    for variable, what in _VARIABLES.items():
        if _is_set(environ, variable):
            raise _refusal(what, f"{variable}={environ[variable]}", name)
    if arguments.get("torch_tp_plugin") is not None:
        raise UnsupportedError(
            f"the bridge to Accelerate does not support torch_tp_plugin= for {name}",
            why="Accelerate has deprecated it",
            hint="pass parallelism_config=ParallelismConfig(tp_size=...)",
        )
    parallel = parallelism(arguments, environ)
    for size, (what, why) in _SIZES.items():
        if (given := getattr(parallel, size, 1)) != 1:  # Accelerate 1.10 has no sp_size
            raise UnsupportedError(
                f"the bridge to Accelerate does not support {what} for {name}",
                why=f"ParallelismConfig({size}={given}) requests it, but {why}",
                hint=f"use tp_size, dp_shard_size or dp_replicate_size instead of {size}",
            )
    for handler in arguments.get("kwargs_handlers") or ():
        if "Recipe" in type(handler).__name__:
            raise _refusal("fp8", type(handler).__name__, name)


def parallelism(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> ParallelismConfig | None:
    """Return the ParallelismConfig that an argument of ``Accelerator`` or an environment variable requests, or None if neither does."""
    given: ParallelismConfig | None = arguments.get("parallelism_config")
    if given is None and _is_set(environ, "ACCELERATE_USE_PARALLELISM_CONFIG"):
        return ParallelismConfig()
    return given


def is_sharding_requested(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether FSDP is requested, either by the arguments of an ``Accelerator`` or by the variable ACCELERATE_USE_FSDP.

    The variable counts only for the first Accelerator of the process.
    """
    if arguments.get("fsdp_plugin") is not None:
        return True
    return not AcceleratorState._shared_state and _is_set(environ, "ACCELERATE_USE_FSDP")


def refuse_sharding(arguments: Mapping[str, Any], environ: Mapping[str, str], runtime: Runtime, mixed_precision: str) -> None:
    """Check that the bridge supports the sharding that was requested. Does nothing if no sharding was requested.

    Args:
        arguments, environ: As for ``refuse_arguments``.
        runtime: The Runtime of the device.
        mixed_precision: Accelerate's name for the precision.

    Raises:
        UnsupportedError: If sharding other than FSDP2 was requested, if the device is the CPU, if the precision is fp16, or if the device
            lacks something that FSDP2 needs.
        ContradictionError: If the job has several processes, and an earlier Accelerator of this process does not shard. Accelerate has one
            state for the whole process.
    """
    plugin, state = arguments.get("fsdp_plugin"), AcceleratorState._shared_state
    if not is_sharding_requested(arguments, environ):
        return
    name = runtime.accelerator.name
    version = str(environ.get("FSDP_VERSION", "1") if plugin is None else plugin.fsdp_version)
    if version != "2":
        why = "it supports FSDP2; FSDP1 works only on devices that torch itself supports"
        hint = "use FullyShardedDataParallelPlugin(fsdp_version=2), or accelerate launch --fsdp_version 2"
    elif runtime.accelerator.device_type == device_table.host_name():
        why = "Accelerate shards only on accelerators; on the CPU, it would train with DDP without saying so"
        hint = "use accelkit.Runtime(strategy='fsdp') without Accelerate"
    elif mixed_precision == "fp16":
        why = "Accelerate's gradient scaler for FSDP works only on devices that torch itself supports"
        hint = "use mixed_precision='bf16', or accelkit.Runtime(strategy='fsdp', precision='16-mixed') without Accelerate"
    else:
        if state and not is_sharding() and runtime.num_processes > 1:
            raise ContradictionError(
                "FSDP was requested, but an earlier Accelerator of this process does not shard",
                why="Accelerate has one state for the whole process, and would ignore the request",
                hint="pass fsdp_plugin to the first Accelerator",
            )
        checked_strategy("fsdp", runtime.accelerator)
        return
    raise UnsupportedError(f"the bridge to Accelerate does not support this request for FSDP on {name}", why=why, hint=hint)


def refuse_strategy(strategy: str, name: str) -> None:
    """Check that Accelerate can train with the strategy that the accelerator or ACCELKIT_STRATEGY selects.

    Args:
        strategy: The name of the strategy.
        name: The name of the accelerator, for the error.

    Raises:
        UnsupportedError: If Accelerate cannot train with the strategy.
    """
    if strategy not in _STRATEGIES:
        raise UnsupportedError(
            f"the bridge to Accelerate does not support strategy {strategy!r}",
            why=f"it supports {' and '.join(_STRATEGIES)}",
            hint=f"use accelkit.Runtime(accelerator={name!r}, strategy={strategy!r}) without Accelerate",
        )


def refuse_lazy(name: str, plugin: str) -> UnsupportedError:
    """Return the error for a device that traces lazily.

    Such a device must be told when a step ends. Accelerate does this only for devices of torch_xla.
    """
    return UnsupportedError(
        f"the bridge to Accelerate does not support {name}",
        plugin=plugin,
        why="the device traces lazily, and Accelerate marks the end of steps only for devices of torch_xla",
        hint=f"use accelkit.Runtime(accelerator={name!r}), or use Accelerate with torch_xla, without the bridge",
    )


def _refusal(what: str, source: str, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"the bridge to Accelerate does not support {what} for {name}",
        why=f"{source} requests it, but the bridge supports only single devices, DDP, FSDP2, tensor parallelism, DeepSpeed, fp16 and bf16",
        hint=f"remove {source}",
    )


def _is_set(environ: Mapping[str, str], variable: str) -> bool:
    return environ.get(variable, "").lower() in ("1", "true", "yes", "on", "y", "t")
