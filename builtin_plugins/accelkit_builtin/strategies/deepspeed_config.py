"""What DeepSpeed is told: the options, a configuration of its own form, and what the Runtime knows."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from accelkit import ContradictionError, Training, UnsupportedError, UsageError

AUTO = "auto"
_HAS_BF16 = {"32-true": False, "bf16-mixed": True}


@dataclasses.dataclass(frozen=True, slots=True)
class DeepSpeedOptions:
    """How DeepSpeed shards.

    Args:
        stage: ZeRO stage: 1 shards the optimizer's state, 2 gradients too, 3 parameters too.
        offload_optimizer: Keep the optimizer's state in host memory, and step there.
        offload_parameters: Keep parameters in host memory (stage 3).
        config: Everything else: a mapping as DeepSpeed's documentation of its JSON configuration has it, or the path of such a file. Its
            values win over those above. ``"auto"`` is filled by the Runtime, or left to DeepSpeed's default.
    """

    stage: Literal[1, 2, 3] = 2
    offload_optimizer: bool = False
    offload_parameters: bool = False
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None


def configuration(options: DeepSpeedOptions, training: Training, plugin: str) -> dict[str, Any]:
    """The configuration for ``deepspeed.initialize``, as a dict of DeepSpeed's own names.

    Raises:
        UnsupportedError: If DeepSpeed has nothing for the Runtime's precision.
        ContradictionError: If the configuration says something else than the Runtime.
        UsageError: If the configuration cannot be read, or a value cannot be used.
    """
    precision = training.precision.name
    if precision not in _HAS_BF16:
        raise UnsupportedError(
            f"strategy 'deepspeed' cannot do precision {precision!r}",
            plugin=plugin,
            why=f"it knows what DeepSpeed calls {' and '.join(_HAS_BF16)}, and no others",
            hint="use precision='bf16-mixed' or '32-true', or strategy='fsdp'",
        )
    given = _read(options.config)
    zero: dict[str, Any] = {"stage": options.stage}
    zero |= {"offload_optimizer": {"device": "cpu"}} if options.offload_optimizer else {}
    zero |= {"offload_param": {"device": "cpu"}} if options.offload_parameters else {}
    merged = _merged(
        {
            "train_micro_batch_size_per_gpu": _batch_size(given, training),
            "gradient_accumulation_steps": training.accumulation_steps,
            "gradient_clipping": 0.0,  # DeepSpeed's default is 1
            "bf16": {"enabled": _HAS_BF16[precision]},
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,  # any torch optimizer
            "zero_force_ds_cpu_optimizer": False,
            "managed_gradient_accumulation": False,
        },
        given,
    )
    _check(merged, training)
    # The Runtime divides losses and says when to step: for DeepSpeed every step is of one batch.
    merged["gradient_accumulation_steps"] = 1
    merged.pop("train_batch_size", None)
    return merged


def _read(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    what = f"DeepSpeedOptions(config={config!r:.80}) cannot be used"
    if isinstance(config, str | os.PathLike):
        try:
            config = json.loads(Path(config).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(what, why=f"{type(error).__name__}: {error}", hint="give a mapping, or the path of a JSON file") from error
    if not isinstance(config, Mapping):
        raise UsageError(what, why=f"it is a {type(config).__name__}", hint="give a mapping, or the path of a JSON file that holds one")
    return copy.deepcopy(dict(config))


def _merged(ours: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` over ``ours``, where it is not "auto"."""
    result = dict(ours)
    for key, value in given.items():
        if isinstance(value, Mapping):
            under = result.get(key)
            result[key] = _merged(under if isinstance(under, Mapping) else {}, value)
        elif value != AUTO:
            result[key] = value
    return result


def _batch_size(given: Mapping[str, Any], training: Training) -> int:
    """Samples a process has in a batch. DeepSpeed counts samples by it, and nothing else."""
    whole = given.get("train_batch_size", AUTO)
    if training.batch_size is None and isinstance(whole, int):
        return max(whole // (training.num_processes * training.accumulation_steps), 1)
    return training.batch_size or 1


def _check(merged: Mapping[str, Any], training: Training) -> None:
    zero = merged["zero_optimization"]
    stage = zero.get("stage") if isinstance(zero, Mapping) else zero
    if stage not in (1, 2, 3) or isinstance(stage, bool):
        raise UsageError(
            f"DeepSpeed's ZeRO stage is {stage!r}", why="1, 2 and 3 shard", hint="DeepSpeedOptions(stage=2), or strategy='ddp'"
        )
    if "offload_param" in zero and stage != 3:
        raise UsageError(
            f"parameters cannot be offloaded in ZeRO stage {stage}",
            why="only stage 3 shards parameters",
            hint="DeepSpeedOptions(stage=3, offload_parameters=True)",
        )
    steps, size = training.accumulation_steps, merged["train_micro_batch_size_per_gpu"]
    if merged["gradient_accumulation_steps"] != steps:
        raise _contradiction(
            f"gradient_accumulation_steps={merged['gradient_accumulation_steps']!r}",
            f"the Runtime accumulates {steps}",
            f'write "auto" there, and Runtime(gradient_accumulation_steps={merged["gradient_accumulation_steps"]!r})',
        )
    whole = size * steps * training.num_processes
    if merged.get("train_batch_size", whole) != whole:
        raise _contradiction(
            f"train_batch_size={merged['train_batch_size']!r}",
            f"{training.num_processes} processes with batches of {size} and {steps} backward passes a step come to {whole}",
            'write "auto" there',
        )
    name = training.precision.name
    for kind in ("bf16", "fp16", "amp", "torch_autocast"):
        is_enabled = bool(merged.get(kind, {}).get("enabled", False))
        if is_enabled != (kind == "bf16" and _HAS_BF16[name]):
            hint = "write \"auto\" there; Runtime(precision='bf16-mixed') is DeepSpeed's bf16"
            raise _contradiction(f"{kind}.enabled={str(is_enabled).lower()}", f"the Runtime's precision is {name!r}", hint)
    for kind, theirs in (("optimizer", "an optimizer was prepared"), ("scheduler", "schedulers are prepared")):
        if kind in merged:
            raise _contradiction(f"a section {kind!r}", theirs, f"leave {kind!r} out, and make it in the program")
    if merged["managed_gradient_accumulation"]:
        why = "the Runtime says when gradients are complete"
        raise _contradiction("managed_gradient_accumulation=true", why, "leave it out; use rt.accumulate(model)")


def _contradiction(said: str, why: str, hint: str) -> ContradictionError:
    return ContradictionError(f"DeepSpeed's configuration has {said}", why=why, hint=hint)
