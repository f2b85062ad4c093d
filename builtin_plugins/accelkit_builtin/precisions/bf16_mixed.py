"""``bf16-mixed``: parameters in float32, the forward pass under the device's own autocast in bfloat16."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from accelkit import Accelerator, Precision, UnsupportedError, map_leaves

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class BFloat16Mixed(Precision):
    """bfloat16 autocast over float32 parameters."""

    required_capabilities = ("autocast.bfloat16",)

    def __init__(self, device_type: str = "") -> None:
        self.device_type = device_type

    @classmethod
    def for_accelerator(cls, accelerator: Accelerator, device: torch.device) -> BFloat16Mixed:
        """For the device's own autocast.

        Raises:
            UnsupportedError: If torch has no bfloat16 autocast for this device type.
        """
        import torch

        device_type = accelerator.autocast_device_type
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # torch only warns where it then computes in float32
                torch.autocast(device_type, torch.bfloat16)
        except (RuntimeError, AssertionError, UserWarning) as error:
            raise UnsupportedError(
                f"{accelerator.name} cannot do bf16-mixed",
                plugin=accelerator.plugin,
                why=f"torch.autocast({device_type!r}, torch.bfloat16) says: {' '.join(str(error).split())}",
                hint="use precision='32-true', or ask the vendor to support torch's autocast in bfloat16",
            ) from error
        return cls(device_type)

    def forward_context(self) -> AbstractContextManager[Any]:
        import torch

        return torch.autocast(self.device_type, torch.bfloat16)

    def convert_output(self, data: T) -> T:
        """bfloat16 results as float32, so that losses and metrics are computed in full precision."""
        import torch

        def widen(leaf: Any) -> Any:
            return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.bfloat16 else leaf

        return map_leaves(widen, data)
