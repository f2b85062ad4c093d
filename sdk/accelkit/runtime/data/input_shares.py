"""Select the share of one process from inputs that every process has in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def share_of(inputs: Any, rank: int, size: int, *, is_padded: bool) -> Any:
    """Divide ``inputs`` into ``size`` consecutive shares and return the share of process ``rank``.

    Without padding, the first shares are one item longer than the others if the length of ``inputs`` is not a multiple of ``size``.

    Args:
        inputs: A list, tuple or tensor, a dict (or other mapping) of these with equal lengths, or any object that has a length and the
            method ``select(indices)``, such as a ``datasets.Dataset``.
        rank: The index of the share, counted from 0.
        size: The number of shares.
        is_padded: Whether to pad the shorter shares to the length of the longest share, with copies of the last item of ``inputs``.

    Returns:
        The share, of the same type as ``inputs``, except that the share of a mapping is a dict, and the share of a named tuple is a plain
        tuple.

    Raises:
        TypeError: If ``inputs`` is of an unsupported type.
        ValueError: If the values of a mapping differ in length.
    """
    if isinstance(inputs, Mapping):
        if nested := [value for value in inputs.values() if isinstance(value, Mapping)]:
            raise _unsupported(f"{type(nested[0]).__name__} in a {type(inputs).__name__}")
        lengths = {key: len(value) for key, value in inputs.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"split_between_processes expects values of equal length, got {lengths}")
        return {key: share_of(value, rank, size, is_padded=is_padded) for key, value in inputs.items()}
    is_dataset = callable(getattr(inputs, "select", None)) and hasattr(inputs, "__len__")
    if not isinstance(inputs, list | tuple | torch.Tensor) and not is_dataset:
        raise _unsupported(type(inputs).__name__)
    total = len(inputs)
    each, extra = divmod(total, size)
    start = rank * each + min(rank, extra)
    stop = start + each + (rank < extra)
    missing = each + (extra > 0) - (stop - start) if is_padded and total else 0
    if isinstance(inputs, torch.Tensor):
        return torch.cat([inputs[start:stop], inputs[-1:].expand(missing, *inputs.shape[1:])]) if missing else inputs[start:stop]
    if isinstance(inputs, list | tuple):
        share = [*inputs[start:stop], *list(inputs[-1:]) * missing]
        return tuple(share) if isinstance(inputs, tuple) else share
    return inputs.select([*range(start, stop), *[total - 1] * missing])


def _unsupported(what: str) -> TypeError:
    return TypeError(f"split_between_processes takes a list, tuple, tensor, dict of these, or datasets.Dataset; not {what}")
