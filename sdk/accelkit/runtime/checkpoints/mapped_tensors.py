"""Tensors whose memory is a mapping of a file, so that loading them takes no main memory.

The values of such a tensor must be copied before they are returned to the program, because a mapping may change when its file changes.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from accelkit.pytree import tree_map
from accelkit.regular_file import open_regular
from accelkit.runtime.checkpoints.atomic_io import FilePart

HOST = "cpu"  # torch's name for main memory
_MARK = "_accelkit_mapped"


class TensorFiles:
    """The files of a folder, each of which contains tensors that ``torch.save`` has written one after another.

    Args:
        folder: The folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: dict[str, mmap.mmap] = {}
        self._can_map = os.name == "posix"  # elsewhere, a file that is mapped cannot be removed

    def load(self, where: Any, *, is_mapped: bool) -> torch.Tensor:
        """Load one tensor to the CPU.

        Args:
            where: The tensor's entry in the ``storage_data`` of the index. It gives the name of the file, and the tensor's offset and
                length in bytes.
            is_mapped: Whether to return a mapped tensor, if possible. The memory of a mapped tensor is not necessarily aligned.
        """
        with open(open_regular(self._folder / where.relative_path), "rb", buffering=0) as file:
            part: Any = FilePart(file, where.offset, where.length)
            if is_mapped and self._can_map and (tensor := self._map(file.fileno(), part, where)) is not None:
                return tensor
            part.seek(0)
            loaded: torch.Tensor = torch.load(part, map_location=HOST, weights_only=True)
            return loaded

    def _map(self, descriptor: int, part: Any, where: Any) -> torch.Tensor | None:
        """Return a tensor whose memory is a private mapping of its file, or None if that is not possible."""
        try:
            described = torch.load(part, map_location="meta", weights_only=True)  # reads everything but the elements
            storage = described.untyped_storage()
            start = getattr(storage, "_checkpoint_offset", None)  # see torch's notes on serialization; torch 2.9 does not set it
            if start is None or type(described) is not torch.Tensor or described.is_conj() or described.is_neg():
                self._can_map = start is not None
                return None
            if where.relative_path not in self._maps:
                self._maps[where.relative_path] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
            whole = self._maps[where.relative_path]
            if start + storage.nbytes() > where.length:
                return None
            elements = torch.frombuffer(whole, dtype=torch.uint8, count=storage.nbytes(), offset=where.offset + start).untyped_storage()
            tensor = torch.empty(0, dtype=described.dtype)
            tensor.set_(elements, described.storage_offset(), described.size(), described.stride())
            mark(tensor)
            return tensor
        except Exception:  # the caller then reads the file, and that raises the error
            return None


def mark(tensor: torch.Tensor) -> None:
    """Mark a tensor as mapped: its memory is a mapping of a file.

    To recognize mapped tensors, the functions that copy their values call ``is_mapped``, which reads the mark.
    """
    tensor.__dict__[_MARK] = True


def is_mapped(tensor: Any) -> bool:
    """Return whether ``tensor``, which may be any value, is a tensor that ``mark`` has marked as mapped."""
    return isinstance(tensor, torch.Tensor) and _MARK in tensor.__dict__


def copied_kinds(targets: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of checkpoint parts whose tensors can be loaded as mapped tensors.

    These kinds are ``model_`` and usually ``optimizer_``. The values of a mapped tensor have to be copied. Models copy the values when they
    load them. For optimizers, ``copy_mapped`` copies the values. However, an optimizer with its own ``load_state_dict`` might keep tensors
    where ``copy_mapped`` does not find them. If there is such an optimizer, ``optimizer_`` is left out.

    Args:
        targets: The objects to load into, by name in the checkpoint.
    """
    ordinary = torch.optim.Optimizer.load_state_dict
    optimizers = [thing for name, thing in targets.items() if name.startswith("optimizer_")]
    is_copied = all(getattr(optimizer.load_state_dict, "__func__", None) is ordinary for optimizer in optimizers)
    return ("model_", "optimizer_") if is_copied else ("model_",)


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` itself, or a copy of it in main memory if it is a mapped tensor."""
    return tensor.to(tensor.dtype, copy=True) if is_mapped(tensor) else tensor


def copy_mapped(optimizer: torch.optim.Optimizer) -> None:
    """Replace the mapped tensors in the state of an optimizer with copies in main memory.

    A tensor that occurs several times is copied once.
    """
    copies = _Copies()
    for key, values in list(optimizer.state.items()):
        optimizer.state[key] = tree_map(copies.replaced, values)


class _Copies:
    """Copies of mapped tensors. The mapped tensors are kept alive too, so that their ids stay unique."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def replaced(self, value: Any) -> Any:
        """Return the replacement for a value that may be, or may contain, mapped tensors.

        For a mapped tensor, return its copy. For a deque or a set, return one in which the mapped tensors are replaced by their copies.
        Return any other value itself.
        """
        if isinstance(value, deque):
            return deque((tree_map(self.replaced, item) for item in value), value.maxlen)
        if isinstance(value, set | frozenset):
            return type(value)(tree_map(self.replaced, item) for item in value)
        if not is_mapped(value):
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = value, in_memory(value)
        return self._copies[id(value)][1]
