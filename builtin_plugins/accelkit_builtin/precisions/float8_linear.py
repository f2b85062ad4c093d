"""The layer of ``fp8``: torchao's ``Float8Linear``, under any device's autocast.

This module imports torchao. It is imported when a model is converted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchao.float8.float8_linear import Float8Linear

if TYPE_CHECKING:
    import torch


class AutocastFloat8Linear(Float8Linear):  # type: ignore[misc]  # torchao has no types
    """A ``Float8Linear`` that rounds its input to the dtype of its own device's autocast, as a ``Linear`` under autocast does.

    On every device, torchao 0.18 asks torch whether CUDA's autocast is enabled and which dtype it has
    (https://github.com/pytorch/ao/issues/4601), so torchao does not round the input under the autocast of another device. torch 2.15
    answers the first question for the autocast of the current accelerator instead (https://github.com/pytorch/pytorch/pull/191916). On an
    out-of-tree device, torchao with torch 2.15 therefore rounds the input to the dtype of CUDA's autocast, float16, in which numbers above
    65504 are infinite.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        import torch

        device_type = input.device.type
        if not (torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)):
            return self._product(input)
        input = input.to(torch.get_autocast_dtype(device_type))
        with torch.autocast(device_type, enabled=False):  # keeps torchao from reading the dtype of autocast
            return self._product(input)

    def _product(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().forward(input)
        return result
