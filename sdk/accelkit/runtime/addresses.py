"""Addresses of tensors in the memory of their device."""

from __future__ import annotations

import torch


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's first element, or 0 if the device has no addresses or the tensor is empty."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0
