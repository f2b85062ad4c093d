"""Precisions that use one dtype for parameters, buffers, inputs and arithmetic."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, TypeVar

from accelkit import Precision
from accelkit_builtin.precisions.casting import cast, default_dtype, widen

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_METHODS = {"torch.float16": "half", "torch.bfloat16": "bfloat16", "torch.float32": "float", "torch.float64": "double"}
"""The methods of torch.nn.Module that cast floating-point parameters and buffers. ``Module.to`` would also cast complex ones."""


class TruePrecision(Precision):
    """A precision that uses one dtype for parameters, buffers, inputs and arithmetic."""

    dtype_name: ClassVar[str]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of storage and computation."""
        import torch

        found: torch.dtype = getattr(torch, self.dtype_name)
        return found

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Cast floating-point parameters and buffers to the precision's dtype, in place.

        Parameters and buffers of other dtypes, including complex dtypes, are unchanged.
        """
        converted: torch.nn.Module = getattr(module, _METHODS[str(self.dtype)])()
        return converted

    def convert_input(self, data: T) -> T:
        """Return the data with floating-point tensors cast to the precision's dtype.

        Tensors of other dtypes, including complex dtypes, are unchanged.
        """
        import torch

        return cast(data, self.dtype, torch.is_floating_point)

    def forward_context(self) -> AbstractContextManager[None]:
        """Return a context manager inside which torch's default dtype is the dtype of the precision."""
        return default_dtype(self.dtype)

    def tensor_init_context(self) -> AbstractContextManager[None]:
        return default_dtype(self.dtype)


class NarrowPrecision(TruePrecision):
    """A ``TruePrecision`` whose dtype is narrower than float32.

    The outputs of a forward pass are cast to float32, so that losses and metrics have full precision.
    """

    def convert_output(self, data: T) -> T:
        return widen(data, self.dtype)
