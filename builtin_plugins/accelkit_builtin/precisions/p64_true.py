"""``64-true``: parameters, inputs and arithmetic in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from accelkit import Precision, map_leaves

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class Float64(Precision):
    """float64 throughout."""

    required_capabilities = ("dtype.float64",)

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        return module.double()

    def convert_input(self, data: T) -> T:
        """Floating tensors as float64; integers and complex numbers as they are."""
        import torch

        def widen(leaf: Any) -> Any:
            return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

        return map_leaves(widen, data)

    def forward_context(self) -> AbstractContextManager[None]:
        """Tensors that the forward pass makes are float64 too."""
        return _default_float64()

    def module_init_context(self) -> AbstractContextManager[None]:
        return _default_float64()


@contextmanager
def _default_float64() -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
