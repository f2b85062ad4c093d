"""Accelerators that lack a dtype: the fake XPU, which declares not to have it and refuses it. ``lacking_dtype:float64`` is the class."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants.broken import Broken

STORAGE_CALLS = ("set_.source_Storage", "set_.source_Storage_storage_offset", "copy_", "_to_copy")
"""The calls with which torch copies a storage, as uint8, whatever the dtype of its tensors."""


class _Lacking(Broken):
    """The fake XPU without a dtype."""

    dtype = ""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_leaves

        result = call()
        if self.dtype == "uint8" and (name in STORAGE_CALLS or (name == "empty.memory_format" and not result.numel())):
            return result
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "fake_xpu" and leaf.dtype is getattr(torch, self.dtype):
                raise TypeError(f"{name}: the device does not have the dtype {self.dtype}")
        return result


def __getattr__(dtype: str) -> type[_Lacking]:
    declared = _Lacking.declared_capabilities
    if f"dtype.{dtype}" not in declared:
        raise AttributeError(dtype)
    none = {key: "none" for key in (f"dtype.{dtype}", f"autocast.{dtype}") if key in declared}
    attributes = {"dtype": dtype, "declared_capabilities": declared.updated(none), "__doc__": f"The fake XPU without {dtype}."}
    return type(dtype, (_Lacking,), attributes | {"__module__": __name__})
