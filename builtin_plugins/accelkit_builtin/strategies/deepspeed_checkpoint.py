"""DeepSpeed's part of an accelkit checkpoint: save the state of a DeepSpeedEngine to a folder, and load it.

The engine's ``save_checkpoint`` writes its files below the folder ``state``. The files are pickles, so accelkit reads them with torch's
``weights_only=True``, which runs no code from a file. The only DeepSpeed classes that the files may contain are those that ``_classes``
returns. ``layout.json`` describes the job that saved the files. ``load`` compares that job with the current job. If DeepSpeed cannot load
the files in the current job, ``load`` raises an error before it changes anything.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accelkit import CheckpointError, UnsupportedError

TAG = "state"  # DeepSpeed's tag: the name of the folder of its files
_LAYOUT = "layout.json"
_SHOWN = 3
_LONGEST = 300  # characters of torch's messages, which are long


def save(engine: Any, folder: Path, plugin: str) -> None:
    """Write the state of a DeepSpeedEngine into an empty folder. All processes must call this function.

    Raises:
        CheckpointError: If a value of the engine's state could be loaded only by unpickling an object, which can run any code.
        UnsupportedError: If parameters or the optimizer's state are offloaded to NVMe.
        OSError, RuntimeError: On the process that cannot write a file. torch reports a failed write as RuntimeError.
    """
    import torch
    import torch.distributed as dist

    zero = engine.config["zero_optimization"]
    on_nvme = [name for name in ("offload_optimizer", "offload_param") if (zero.get(name) or {}).get("device") == "nvme"]
    if on_nvme:
        raise UnsupportedError(
            "save_state does not support DeepSpeed's offloading to NVMe",
            plugin=plugin,
            why=f"DeepSpeed's configuration sets it in {' and '.join(on_nvme)}, and DeepSpeed keeps this state in files of its own",
            hint='use {"device": "cpu"} there, or call model.save_checkpoint(folder) on every process',
        )
    errors: list[Exception] = []

    def write(state_dict: Any, path: str) -> None:
        """Write one file, and check that it can be loaded without running code. Errors are added to ``errors``, and are not raised.

        The other processes wait for this process at the end of ``save_checkpoint``, so ``save`` raises the error only after
        ``save_checkpoint`` has returned.
        """
        try:
            torch.save(state_dict, path)
            _refuse_code(Path(path), plugin)
        except Exception as error:
            errors.append(error)

    with _file_access(engine, save=write):
        engine.save_checkpoint(str(folder), tag=TAG, save_latest=False)
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()  # no reference cycle through the traceback, which would keep tensors in memory
    if dist.get_rank() == 0:
        (folder / _LAYOUT).write_text(json.dumps(_layout(engine)), "utf-8")


def load(engine: Any, folder: Path, plugin: str) -> None:
    """Load what ``save`` wrote. All processes must call this function.

    Raises:
        CheckpointError: If DeepSpeed cannot load the files into this engine, or if a file is damaged or cannot be read without running
            code. In the first case, nothing has been changed. In the other cases, a part of the engine's state may have been loaded.
    """
    import torch

    _check_layout(engine, folder, plugin)

    def read(path: str, map_location: Any = None) -> Any:
        try:
            with torch.serialization.safe_globals([*_classes()]):
                return torch.load(path, map_location=map_location, weights_only=True)
        except Exception as error:  # a forged file may raise any exception
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"
            raise CheckpointError(f"{path} cannot be read", plugin=plugin, why=why) from error

    with _file_access(engine, load=read):
        engine.load_checkpoint(str(folder), tag=TAG)


@contextlib.contextmanager
def _file_access(engine: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """Context manager inside which the engine writes and reads files with ``functions``, whatever its configuration says.

    Inside it, the engine loads an ordinary checkpoint even if the configuration asks for a universal checkpoint. When the engine saves, it
    does not copy its recovery script into the checkpoint.
    """
    from deepspeed.runtime.checkpoint_engine import torch_checkpoint_engine

    before, access = engine.checkpoint_engine, torch_checkpoint_engine.TorchCheckpointEngine()
    vars(access).update(functions)
    engine.checkpoint_engine = access
    engine.load_universal_checkpoint = lambda: False
    engine._copy_recovery_script = lambda save_path: None
    try:
        yield
    finally:
        engine.checkpoint_engine = before
        del engine.load_universal_checkpoint, engine._copy_recovery_script


def _classes() -> list[type]:
    """Return the DeepSpeed classes that occur in DeepSpeed's checkpoint files. Loading their instances runs no code from a file."""
    from deepspeed.runtime.fp16 import loss_scaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [loss_scaler.LossScaler, loss_scaler.DynamicLossScaler, ZeroStageEnum, fragment_address]


def _refuse_code(path: Path, plugin: str) -> None:
    import torch

    known = {f"{cls.__module__}.{cls.__qualname__}" for cls in _classes()}
    if unknown := sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(path)) - known):
        raise CheckpointError(
            "the state of DeepSpeed's engine cannot be saved",
            plugin=plugin,
            why=f"it contains {', '.join(unknown[:_SHOWN])}, which could be loaded only by running code",
            hint="use only numbers, strings and tensors in the optimizer's state, its param_groups and DeepSpeed's configuration",
        )


def _layout(engine: Any) -> dict[str, Any]:
    """Return, as JSON values, the properties that the saving job and the loading job must have in common."""
    import torch.distributed as dist

    precision = "float16" if engine.fp16_enabled() else "bfloat16" if engine.bfloat16_enabled() else "float32"
    return {
        "num_processes": dist.get_world_size(),
        "stage": int(engine.zero_optimization_stage()),
        "precision": precision,
        "parameters": {
            name: [list(getattr(one, "ds_shape", one.shape)), one.requires_grad] for name, one in engine.module.named_parameters()
        },
    }


def _check_layout(engine: Any, folder: Path, plugin: str) -> None:
    current = _layout(engine)
    try:
        saved = json.loads((folder / _LAYOUT).read_text("utf-8"))
        given = {name: saved[name] for name in current}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{folder} has no files of DeepSpeed that accelkit can read", plugin=plugin, why=f"{type(error).__name__}: {error}"
        ) from error
    kinds = {
        "num_processes": "the number of processes was {} and is {}",
        "stage": "the ZeRO stage was {} and is {}",
        "precision": "the parameters were in {} and are in {}",
    }
    reasons = [text.format(given[name], current[name]) for name, text in kinds.items() if given[name] != current[name]]
    if reasons:
        raise CheckpointError(
            f"DeepSpeed cannot load {folder} in this job",
            plugin=plugin,
            why="; ".join(reasons),
            hint=f"start the job as it was when the checkpoint was saved, or convert {folder / TAG} with "
            "python -m deepspeed.checkpoint.ds_to_universal (see accelkit's page Strategies, section DeepSpeed)",
        )
    before, now = given["parameters"], current["parameters"]
    different = [name for name in [*now, *(name for name in before if name not in now)] if before.get(name) != now.get(name)]
    if different or list(before) != list(now):
        names = f"{', '.join(different[:_SHOWN])}{f' and {len(different) - _SHOWN} more' if len(different) > _SHOWN else ''}"
        raise CheckpointError(
            f"{folder} was saved with another model",
            plugin=plugin,
            why=f"these parameters are missing, or differ in shape or in requires_grad: {names}" if different else "its order differs",
            hint="prepare the same model with the same optimizer, then load",
        )
