"""Copy a sample to the device.

Whole storages are copied: offsets and strides stay the same, and tensors that share a storage also share one on the device. A view of a
tensor becomes a view of a tensor with the same sizes on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from accelkit.runtime.comparison.tolerance import DOUBLE

_DEVICES_OF_SAMPLES = ("cpu", "cuda")
"""Names of devices that samples may contain. On a machine that has CUDA, torch's database passes ``device="cuda"`` to some operators."""


def tensors(nested: Any) -> list[torch.Tensor]:
    """Return every tensor in nested data."""
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def as_leaf(one: Any) -> Any:
    """Make a floating-point or complex tensor require a gradient, and return it. Return any other value unchanged."""
    return one.requires_grad_() if isinstance(one, torch.Tensor) and (one.is_floating_point() or one.is_complex()) else one


def has_memory(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's storage has an address.

    If the storage has no address, the bytes around the tensor cannot be read, and the storage cannot be read as another dtype.
    """
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return False


def has_storage(tensor: torch.Tensor) -> bool:
    """Return whether the tensor has a storage, with or without an address. On some devices, tensors have no storage."""
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def to_device(nested: Any, device: torch.device) -> Any:
    """Return a copy of ``nested`` on ``device``. Strided tensors keep their memory layout, and those that share a storage share its copy.

    The copies are leaves, and require a gradient if the originals do. Each ``torch.device``, and each string in ``_DEVICES_OF_SAMPLES``, is
    replaced with ``device``.

    Each tensor that is not strided or has no storage is copied separately. If a tensor has no storage, its memory layout and the memory
    that it shares with other tensors cannot be determined.
    """
    storages: dict[Any, torch.Tensor] = {}

    def whole(storage: torch.UntypedStorage, dtype: torch.dtype, key: Any) -> torch.Tensor:
        """Return a copy of the whole storage on the device. The first call with a key makes the copy, in ``dtype``. Later calls with the
        same key return this copy."""
        if key not in storages:
            there = torch.empty(0, dtype=dtype, device=storage.device)
            storages[key] = there.set_(storage).to(device, copy=True)  # type: ignore[call-overload]
        return storages[key]

    def placed(memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor in ``memory`` with the dtype, sizes, strides and offset of ``like``."""
        there = torch.empty(0, dtype=like.dtype, device=device)
        return there.set_(memory.untyped_storage(), like.storage_offset(), like.size(), like.stride())  # type: ignore[call-overload]

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf in _DEVICES_OF_SAMPLES):
            return device
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.layout is not torch.strided or not has_storage(leaf):
            copied = leaf.detach().to(device, copy=True)
            return copied.requires_grad_() if leaf.requires_grad else copied  # inside torch.func.vmap, requires_grad_ is an error
        storage = leaf.untyped_storage()
        memory = whole(storage, leaf.dtype, storage.data_ptr())  # use only dtypes of the sample; the device may lack others
        if not memory.numel():
            there = torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=device)
        elif not has_memory(memory):
            there = whole(storage, leaf.dtype, (storage.data_ptr(), leaf.dtype)).as_strided(
                leaf.size(), leaf.stride(), leaf.storage_offset()
            )
        elif (base := leaf._base) is not None and base.dtype == leaf.dtype and has_storage(base):
            there = placed(memory, base).as_strided(leaf.size(), leaf.stride(), leaf.storage_offset())
        else:
            there = placed(memory, leaf)
        if leaf.is_conj():
            there = torch._conj(there)
        if leaf.is_neg():
            there = torch._neg_view(there)
        return there.requires_grad_(leaf.requires_grad)

    return tree_map(move, nested)


def to_double(nested: Any) -> Any:
    """Return a copy on the CPU in which floating-point tensors and dtypes are float64, and complex tensors and dtypes are complex128."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return DOUBLE.get(leaf, leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().to(DOUBLE.get(leaf.dtype, leaf.dtype), copy=True).requires_grad_(leaf.requires_grad)

    return tree_map(convert, nested)
