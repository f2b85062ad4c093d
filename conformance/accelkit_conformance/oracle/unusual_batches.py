"""Programs with modules and losses whose batches are in low precision, have no elements, or have targets without elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # the usual name
from torch import nn

from accelkit_conformance.oracle.programs import Program, made, random_values


def _in_low_precision(make: Callable[[], nn.Module]) -> Program:
    """Return a program that calls a normalization with float32 parameters on batches in bfloat16 and float16."""

    def program(device: torch.device) -> Any:
        found = []
        for dtype in (torch.bfloat16, torch.float16):
            layer = made(make, device)
            x = (random_values(device, 4, 3, 5, 2) * 4 + 1).to(dtype).requires_grad_()
            y = layer(x)
            (y.float() * random_values(device, 5, 2)).sum().backward()
            layer.eval()
            found.append((y, x.grad, [one.grad for one in layer.parameters()], list(layer.buffers()), layer(x)))
        return found

    return program


def _ctc_losses(device: torch.device) -> Any:
    found = []
    for targets, lengths in (([1, 2, 3, 1, 2], [3, 0, 2]), ([[1, 2, 2], [1, 1, 1], [4, 1, 1]], [3, 0, 1])):
        for dtype, is_zero in itertools.product((torch.int64, torch.int32), (True, False)):
            x = random_values(device, 12, 3, 5).requires_grad_()
            given = torch.tensor(targets, dtype=dtype, device=device)
            steps = (torch.tensor([12, 12, 10], dtype=dtype), torch.tensor(lengths, dtype=dtype))
            losses = F.ctc_loss(x.log_softmax(2), given, *steps, reduction="none", zero_infinity=is_zero)
            found.append((losses, torch.autograd.grad(losses, x, torch.tensor([1.0, 2.0, 3.0], device=device))))
    # On CUDA, targets of 256 labels and of more than 512 labels are computed by different kernels than shorter ones. Neighbouring labels
    # differ.
    for lengths, steps, dtype in (
        ([600, 513], [1300, 1280], torch.int64),
        ([256, 255], [600, 600], torch.int32),
        ([257, 256], [600, 600], torch.int64),
    ):
        x, many = (
            random_values(device, max(steps), 2, 5).requires_grad_(),
            (torch.arange(2 * lengths[0], device=device) % 4 + 1).view(2, -1),
        )
        many = torch.cat([many[0], many[1, : lengths[1]]]) if dtype is torch.int32 else many
        given = (torch.tensor(steps, dtype=dtype), torch.tensor(lengths, dtype=dtype))
        losses = F.ctc_loss(x.log_softmax(2), many.to(dtype), *given, reduction="none")
        found.append((losses, torch.autograd.grad(losses.sum(), x)))
    return found


def _empty_batches(device: torch.device) -> Any:
    found = []
    for make, shape in (
        (lambda: nn.BatchNorm2d(3), (0, 3, 4, 4)),
        (lambda: nn.LayerNorm(4), (0, 3, 4)),
        (lambda: nn.GroupNorm(3, 3), (0, 3, 4)),
        (lambda: nn.Linear(4, 2), (0, 3, 4)),
        (lambda: nn.Conv2d(3, 2, 2), (0, 3, 4, 4)),
        (lambda: nn.MaxPool2d(2), (0, 3, 4, 4)),
        (lambda: nn.AdaptiveAvgPool2d(2), (0, 3, 4, 4)),
        (lambda: nn.MultiheadAttention(4, 2, batch_first=True), (0, 3, 4)),
    ):
        layer, x = made(make, device), random_values(device, *shape).requires_grad_()
        y = layer(x, x, x, need_weights=False)[0] if isinstance(layer, nn.MultiheadAttention) else layer(x)
        y.sum().backward()
        found.append((y, x.grad, [one.grad for one in layer.parameters()], list(layer.buffers())))
    return found


UNUSUAL_BATCHES: Mapping[str, Program] = {
    "mixed_batch_norm": _in_low_precision(lambda: nn.BatchNorm2d(3)),
    "mixed_batch_norm_without_weights": _in_low_precision(lambda: nn.BatchNorm2d(3, affine=False)),
    "mixed_instance_norm": _in_low_precision(lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True)),
    "ctc_losses": _ctc_losses,
    "empty_batches": _empty_batches,
}
"""The programs, by name."""
