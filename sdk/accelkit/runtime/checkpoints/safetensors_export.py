"""Export weights: the state dict of the whole model, and files that Hugging Face tools can read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accelkit.atomic_file import atomic_file
from accelkit.errors import CheckpointError, UsageError
from accelkit.runtime.checkpoints.atomic_io import disk_error
from accelkit.runtime.checkpoints.coordinator import Ranks
from accelkit.runtime.checkpoints.state_codec import place_of
from accelkit.runtime.checkpoints.state_dict_keys import bare_state

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SHARD = re.compile(r"(model|pytorch_model)-\d{5}-of-\d{5}\.(safetensors|bin)")


def whole_state_dict(model: torch.nn.Module, ranks: Ranks) -> dict[str, Any]:
    """Return the model's state dict with whole tensors and without the prefixes of torch.compile.

    All processes must call this function, because all of them take part in gathering the shards. Shards are gathered one tensor at a time.

    Args:
        model: The model.
        ranks: All processes of the job. Together, they gather the shards.

    Returns:
        For a model without DTensors, the model's own tensors, on every process. Otherwise, whole tensors in main memory on rank 0, and an
        empty dict on the other ranks.

    Raises:
        CheckpointError: If two keys become equal when the prefixes of torch.compile are removed.
    """
    state = bare_state(model)
    if not any(isinstance(value, DTensor) for value in state.values()):
        return state
    gathered = {key: _gather(value, ranks.rank == 0) for key, value in state.items()}
    return gathered if ranks.rank == 0 else {}


def save_weights(model: torch.nn.Module, folder: Path, *, max_shard_size: int | str, safe: bool, ranks: Ranks) -> None:
    """Write the weights as ``model.safetensors``, or as several files and an index. All processes must call this; rank 0 writes.

    Sharded weights are gathered for one file at a time, so rank 0 does not hold all weights at once. A tied weight is written once, under
    the first of its names. The metadata of a safetensors file lists the weight's other names, and ``safetensors.torch.load_model`` restores
    the weight under all its names.

    Args:
        model: The user's own model, without wrappers such as DDP.
        folder: The folder to write to. It is created if it is missing. Files of an earlier export in the same format are removed or
            replaced.
        max_shard_size: The maximum total size of the weights in a file, in bytes or as a string such as ``"5GB"``. A weight that is larger
            gets its own file, which exceeds the maximum.
        safe: Whether to write safetensors. Otherwise, ``torch.save`` writes ``pytorch_model.bin`` or several files and an index.
        ranks: All processes of the job.

    Raises:
        UsageError: If ``max_shard_size`` is not a valid size.
        CheckpointError: On every process, if the files cannot be written.
    """
    limit = size_in_bytes(max_shard_size)

    def blame(error: Exception) -> CheckpointError:
        disk = disk_error(error)
        is_of_disk = disk is not None or "os error" in str(error)  # the message of safetensors' own error contains it
        cause = disk or error
        return CheckpointError(
            f"the weights could not be saved to {folder}",
            why=f"{type(cause).__name__}: {cause}",
            hint="use safe_serialization=False to save with torch.save"
            if safe and not is_of_disk
            else "check the free space and the permissions",
        )

    stem, suffix = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    state = {key: value for key, value in bare_state(model).items() if isinstance(value, torch.Tensor)}
    kept, tied = _without_ties(state)
    files = _name_files(list(_split(kept, limit)), stem, suffix)
    ranks.from_main(blame, lambda: folder.mkdir(parents=True, exist_ok=True))
    for name, keys in files.items():
        tensors = {key: _gather(kept[key], ranks.rank == 0) for key in keys}
        ranks.from_main(blame, lambda name=name, tensors=tensors: _write(folder / name, _writer_of(tensors, tied, safe)))  # type: ignore[misc]
        del tensors
    index = {
        "metadata": {"total_size": sum(_bytes(tensor) for tensor in kept.values())},
        "weight_map": {key: name for name, keys in files.items() for key in keys},
    }

    def finish() -> None:
        path = folder / f"{stem}.{suffix}.index.json"
        if len(files) > 1:
            _write(path, lambda temporary: temporary.write_text(json.dumps(index, indent=2) + "\n", "utf-8"))
        else:
            path.unlink(missing_ok=True)
        for old in folder.iterdir():
            is_of_this_kind = _SHARD.fullmatch(old.name) or old.name == f"{stem}.{suffix}"
            if is_of_this_kind and old.name.startswith(stem) and old.suffix == f".{suffix}" and old.name not in files:
                old.unlink()

    ranks.from_main(blame, finish)


def size_in_bytes(size: int | str) -> int:
    """Return a size in bytes. For example, ``"5GB"`` is 5,000,000,000.

    Args:
        size: A positive number of bytes, or a string with a positive integer and a unit: B, KB, MB, GB, TB (powers of 1000) or KiB, MiB,
            GiB, TiB (powers of 1024). Upper and lower case are not distinguished, and no unit means bytes.

    Raises:
        UsageError: If ``size`` has another form, or is not positive.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", str(size))
    if isinstance(size, bool) or match is None or match[2].upper() not in _UNITS or int(match[1]) == 0:
        raise UsageError(
            f"max_shard_size={size!r} is not a valid size",
            hint='use a positive number of bytes, or an integer with a unit such as "5GB" or "500MiB"',
        )
    return int(match[1]) * _UNITS[match[2].upper()]


def _without_ties(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return two dicts. The first has each tensor once, under its first name. The second maps every later name to the first name."""
    first: dict[tuple[Any, ...], str] = {}
    kept: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    for key, tensor in state.items():
        name = first.setdefault(place_of(tensor), key) if tensor.numel() else key
        if name == key:
            kept[key] = tensor
        else:
            tied[key] = name
    return kept, tied


# huggingface_hub.split_state_dict_into_shards_factory splits in the same way, but could replace only the next two functions (16 lines):
# it accepts neither the units KiB and MiB nor a size without a unit, and returns no file name if there are no tensors. Importing
# huggingface_hub takes only 0.03 s, but installing it requires nine packages, five of which are not needed otherwise, and 27 MB of disk
# space.
def _split(tensors: Mapping[str, torch.Tensor], limit: int) -> Iterator[list[str]]:
    """Yield lists of consecutive keys.

    The tensors of a list have at most ``limit`` bytes in total, unless the list has only one tensor. A tensor that is larger than ``limit``
    gets a list of its own. If there are no tensors, one empty list is yielded.
    """
    keys: list[str] = []
    total = 0
    for key, tensor in tensors.items():
        if keys and total + _bytes(tensor) > limit:
            yield keys
            keys, total = [], 0
        keys.append(key)
        total += _bytes(tensor)
    yield keys


def _name_files(shards: list[list[str]], stem: str, suffix: str) -> dict[str, list[str]]:
    count = len(shards)
    if count == 1:
        return {f"{stem}.{suffix}": shards[0]}
    return {f"{stem}-{number:05}-of-{count:05}.{suffix}": keys for number, keys in enumerate(shards, 1)}


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gather(value: Any, is_wanted: bool) -> Any:
    """If ``is_wanted``, return the whole tensor in main memory. Otherwise, return an empty placeholder for it.

    A value that is not a tensor is returned unchanged. For a DTensor, every process must call this, because all of them take part in
    gathering it.
    """
    if not isinstance(value, torch.Tensor):
        return value
    whole = value.detach()
    if isinstance(whole, DTensor):
        whole = whole.full_tensor()
    return whole.cpu() if is_wanted else whole.new_empty(0)  # a view would keep the whole tensor in memory


def _writer_of(tensors: Mapping[str, torch.Tensor], tied: Mapping[str, str], safe: bool) -> Callable[[Path], object]:
    if not safe:
        others = {key: tensors[name] for key, name in tied.items() if name in tensors}
        return lambda temporary: torch.save({**tensors, **others}, temporary)
    from safetensors.torch import save_file

    own = _apart(tensors)
    metadata = {"format": "pt"} | {key: name for key, name in tied.items() if name in tensors}
    return lambda temporary: save_file(own, temporary, metadata)


def _write(path: Path, write: Callable[[Path], object]) -> None:
    with atomic_file(path) as temporary:
        write(temporary)


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous tensors that do not share memory, as safetensors requires.

    safetensors writes the memory of a tensor and ignores its conjugate bit and its negative bit, so these are resolved first.
    """
    seen: set[int] = set()
    apart = {}
    for key, lazy in tensors.items():
        tensor = lazy.resolve_conj().resolve_neg()
        memory = tensor.untyped_storage().data_ptr()
        is_alone = memory not in seen and tensor.is_contiguous()
        seen.add(memory)
        apart[key] = tensor if is_alone else tensor.clone(memory_format=torch.contiguous_format)
    return apart
