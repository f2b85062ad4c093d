"""``16-true``: parameters, inputs and arithmetic in float16, which needs half the memory of float32. Values easily overflow or vanish."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, ClassVar

from accelkit_builtin.precisions.true_precision import NarrowPrecision

if TYPE_CHECKING:
    import torch

_SMALLEST = 2.0**-24  # float16's smallest subnormal


class Float16(NarrowPrecision):
    """float16 parameters and computation."""

    required_capabilities: ClassVar[tuple[str, ...]] = ("dtype.float16",)
    dtype_name = "float16"

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Warn about an ``eps`` that float16 rounds to zero, because parameters whose gradients are zero then become NaN (0/0)."""
        eps = {group.get("eps") for group in optimizer.param_groups}
        vanishing = sorted(one for one in eps if isinstance(one, float) and 0 < one <= _SMALLEST / 2)  # Adafactor has a tuple
        if vanishing:
            name = type(optimizer).__name__
            warnings.warn(
                f"{name}(eps={vanishing[0]:g}) divides by eps if a gradient is zero. This eps is 0 in float16, so parameters become nan. "
                f"Use {name}(eps=1e-4) or more, or precision='16-mixed' or 'bf16-true'",
                stacklevel=4,
            )
