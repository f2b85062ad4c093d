"""DeepSpeed's configuration, merged from the options, a configuration in DeepSpeed's own format, and the Runtime's settings."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from accelkit import ContradictionError, EngineSettings, Precision, UnsupportedError, UsageError
from accelkit_builtin.precisions.bf16_mixed import BFloat16Mixed
from accelkit_builtin.precisions.p32_true import Float32
from accelkit_builtin.strategies.deepspeed_float16 import EngineScaledFloat16

AUTO = "auto"
_NAMES = ("32-true", "bf16-mixed", "16-mixed")
_PRECISION_SECTIONS = ("bf16", "fp16", "amp", "torch_autocast")


@dataclasses.dataclass(frozen=True, slots=True)
class DeepSpeedOptions:
    """How DeepSpeed shards and offloads a model.

    Args:
        stage: The ZeRO stage. Stage 1 shards the optimizer's state, stage 2 also shards gradients, and stage 3 also shards parameters.
        offload_optimizer: Whether to keep the optimizer's state in host memory and run its step on the CPU.
        offload_parameters: Whether to keep parameters in host memory. This requires stage 3.
        config: A configuration in DeepSpeed's JSON format, as a mapping or as the path of a JSON file. Its values take precedence over the
            options above. A setting that is ``"auto"`` gets its value from the options above or from the Runtime. If neither determines
            the value, DeepSpeed's default is used. The settings may differ between processes, for example in the paths of offloaded
            tensors.
    """

    stage: Literal[1, 2, 3] = 2
    offload_optimizer: bool = False
    offload_parameters: bool = False
    config: Mapping[str, Any] | str | os.PathLike[str] | None = dataclasses.field(default=None, metadata={"per_process": True})


def configuration(options: DeepSpeedOptions, settings: EngineSettings, plugin: str) -> dict[str, Any]:
    """Return the configuration for ``deepspeed.initialize``: a dict whose keys are the names of DeepSpeed's settings.

    Raises:
        UnsupportedError: If DeepSpeed does not support the Runtime's precision. The error names ``plugin``, which is ``dist==version``.
        ContradictionError: If the configuration contradicts the Runtime, for example because it has a section ``optimizer``.
        UsageError: If the configuration cannot be read, if a section is not a mapping, if the ZeRO stage is not 1, 2 or 3, or if parameters
            are offloaded in stage 1 or 2.
    """
    section = _section(settings.precision, plugin)
    given = _read(options.config)
    zero: dict[str, Any] = {"stage": options.stage}
    zero |= {"offload_optimizer": {"device": "cpu"}} if options.offload_optimizer else {}
    zero |= {"offload_param": {"device": "cpu"}} if options.offload_parameters else {}
    merged = _merged(
        {
            "train_micro_batch_size_per_gpu": _batch_size(given, settings),
            "gradient_accumulation_steps": settings.accumulation_steps,
            "gradient_clipping": 0.0,  # DeepSpeed's default is 1
            "bf16": {"enabled": section == "bf16"},
            "fp16": settings.precision.configuration() if isinstance(settings.precision, EngineScaledFloat16) else {"enabled": False},
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,  # allow any torch optimizer
            "zero_force_ds_cpu_optimizer": False,
            "managed_gradient_accumulation": False,
        },
        given,
    )
    _check(merged, settings, section)
    # The Runtime divides losses and decides when to step, so DeepSpeed sees one batch per step.
    merged["gradient_accumulation_steps"] = 1
    merged.pop("train_batch_size", None)
    return merged


def _read(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    what = f"DeepSpeedOptions(config={config!r:.80}) is invalid"
    if isinstance(config, str | os.PathLike):
        try:
            config = json.loads(Path(config).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(what, why=f"{type(error).__name__}: {error}", hint="pass a mapping or the path of a JSON file") from error
    if not isinstance(config, Mapping):
        raise UsageError(
            what, why=f"its type is {type(config).__name__}", hint="pass a mapping, or the path of a JSON file that contains one"
        )
    return copy.deepcopy(dict(config))


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``defaults`` updated with the values of ``given`` that are not "auto". Nested mappings are merged recursively."""
    result = dict(defaults)
    for key, value in given.items():
        if isinstance(value, Mapping):
            under = result.get(key)
            result[key] = _merged(under if isinstance(under, Mapping) else {}, value)
        elif value != AUTO:
            result[key] = value
    return result


def _batch_size(given: Mapping[str, Any], settings: EngineSettings) -> int:
    """Return the number of samples in a batch of one process. DeepSpeed uses this number only to count samples."""
    whole = given.get("train_batch_size", AUTO)
    if settings.batch_size is None and isinstance(whole, int):
        return max(whole // (settings.num_processes * settings.accumulation_steps), 1)
    return settings.batch_size or 1


def _section(precision: Precision, plugin: str) -> str | None:
    """Return the name of the section of DeepSpeed's configuration that enables a precision, or None for float32.

    If the user passes a precision as an object, the precision is recognised by its class. If an accelerator has its own implementation of
    a precision, the precision is recognised by its name.

    Raises:
        UnsupportedError: If DeepSpeed does not support the precision. The error names ``plugin``.
    """
    if isinstance(precision, EngineScaledFloat16):
        return "fp16"
    if isinstance(precision, BFloat16Mixed) or precision.name == "bf16-mixed":
        return "bf16"
    if isinstance(precision, Float32) or precision.name == "32-true":
        return None
    raise UnsupportedError(
        f"strategy 'deepspeed' does not support precision {precision.name!r}",
        plugin=plugin,
        why=f"DeepSpeed supports only {', '.join(_NAMES)}",
        hint=f"use one of {', '.join(_NAMES)}, or strategy='fsdp'",
    )


def _check(merged: Mapping[str, Any], settings: EngineSettings, section: str | None) -> None:
    for name in ("zero_optimization", *_PRECISION_SECTIONS):
        if not isinstance(merged.get(name, {}), Mapping):
            example = '{"stage": 2}' if name == "zero_optimization" else '{"enabled": true}'
            raise UsageError(
                f"DeepSpeed's configuration has {name}={merged[name]!r:.80}",
                why="this section must be a mapping",
                hint=f'write "{name}": {example}',
            )
    zero = merged["zero_optimization"]
    stage = zero["stage"]
    if stage not in (1, 2, 3) or isinstance(stage, bool):
        raise UsageError(
            f"invalid ZeRO stage {stage!r}",
            why="it must be 1, 2 or 3",
            hint="use DeepSpeedOptions(stage=2), or strategy='ddp' to train without sharding",
        )
    offload = zero.get("offload_param")
    if stage != 3 and offload is not None and not (isinstance(offload, Mapping) and offload.get("device", "none") in (None, "none")):
        raise UsageError(
            f"ZeRO stage {stage} cannot offload parameters",
            why="only stage 3 shards and offloads them",
            hint="use DeepSpeedOptions(stage=3, offload_parameters=True)",
        )
    steps, size = settings.accumulation_steps, merged["train_micro_batch_size_per_gpu"]
    if merged["gradient_accumulation_steps"] != steps:
        raise _contradiction(
            f"gradient_accumulation_steps={merged['gradient_accumulation_steps']!r}",
            f"the Runtime has gradient_accumulation_steps={steps}",
            f'set it to "auto", and use Runtime(gradient_accumulation_steps={merged["gradient_accumulation_steps"]!r})',
        )
    whole = size * steps * settings.num_processes
    if merged.get("train_batch_size", whole) != whole:
        raise _contradiction(
            f"train_batch_size={merged['train_batch_size']!r}",
            f"{settings.num_processes} processes with batches of {size} and {steps} micro-batches per step result in {whole}",
            'set it to "auto"',
        )
    name = settings.precision.name
    for kind in _PRECISION_SECTIONS:
        is_enabled = bool(merged.get(kind, {}).get("enabled", False))
        if is_enabled != (kind == section):
            hint = "set it to \"auto\", and use Runtime(precision='bf16-mixed') for bf16, or '16-mixed' for fp16"
            raise _contradiction(f"{kind}.enabled={str(is_enabled).lower()}", f"the Runtime's precision is {name!r}", hint)
    for kind, reason in (("optimizer", "the optimizer comes from prepare"), ("scheduler", "schedulers come from prepare")):
        if kind in merged:
            raise _contradiction(f"a section {kind!r}", reason, f"omit {kind!r} from the configuration, and create it in the program")
    if merged["managed_gradient_accumulation"]:
        why = "the Runtime determines when the gradients are complete"
        raise _contradiction("managed_gradient_accumulation=true", why, "omit it, and use rt.accumulate(model)")


def _contradiction(setting: str, why: str, hint: str) -> ContradictionError:
    return ContradictionError(f"DeepSpeed's configuration has {setting}", why=why, hint=hint)
