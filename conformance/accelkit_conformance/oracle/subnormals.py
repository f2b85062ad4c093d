"""Calls that must leave subnormal numbers unchanged."""

from __future__ import annotations

from collections.abc import Callable

import torch

NUMBERS = torch.tensor([1e-40, -3e-42, 1.4e-45, 5e-39, 1e-38], dtype=torch.float32)
"""Subnormal numbers."""

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul": lambda x: x * 1.0,
    "add": lambda x: x + 0.0,
    "clone": lambda x: x.clone(),
    "neg": lambda x: x.neg().neg(),
    "where": lambda x: torch.where(x != 0, x, 1.0),
    "div": lambda x: x / 1.0,
}
"""The calls, by name."""
