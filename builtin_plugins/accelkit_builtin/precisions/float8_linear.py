"""The class that ``fp8`` gives to ``Linear`` layers: torchao's ``Float8Linear``, adapted to the autocast of any device.

Importing this module imports torchao, so the module is imported only when a model is converted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchao.float8.float8_linear import Float8Linear

if TYPE_CHECKING:
    import torch


class AutocastFloat8Linear(Float8Linear):  # type: ignore[misc]  # torchao has no types
    """A ``Float8Linear`` that rounds its input to the dtype of its own device's autocast, as a ``Linear`` under autocast does.

    If ``torch.is_autocast_enabled()`` is true, torchao 0.18 rounds the input to the dtype of CUDA's autocast, on every device
    (https://github.com/pytorch/ao/issues/4601). Before torch 2.15, ``is_autocast_enabled`` only reports whether CUDA's autocast is enabled,
    so torchao does not round the input under the autocast of another device. In torch 2.15, ``is_autocast_enabled`` is also true under the
    autocast of an out-of-tree device (https://github.com/pytorch/pytorch/pull/191916). torchao then rounds the input to the dtype of CUDA's
    autocast, float16, in which numbers above 65504 are infinite.
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
