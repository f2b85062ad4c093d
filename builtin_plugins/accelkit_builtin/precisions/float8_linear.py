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

    torchao 0.18 asks torch for the state and the dtype of CUDA's autocast, whatever the device, and uses a deprecated function:
    https://github.com/pytorch/ao/issues/4601. It therefore does not round the input under the autocast of another device. torch 2.15
    answers the question about the state for the current accelerator (https://github.com/pytorch/pytorch/pull/191916). With it, torchao
    rounds the input on an out-of-tree device to CUDA's autocast dtype, float16, in which numbers above 65504 are infinite.
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
