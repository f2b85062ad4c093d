"""Convolutions with dimensions of length 1, whose input, weight and output gradient have different memory layouts.

Libraries choose the kernel and the memory format of a convolution from strides, which are ambiguous if a dimension has length 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.layouts import LAYOUTS, MORE_LAYOUTS, arranged
from accelkit_conformance.oracle.pairwise import covering_rows

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LENGTHS = ("1", "3")
_ARRANGED = ("contiguous", *LAYOUTS, *MORE_LAYOUTS)
_AXES = {
    **dict.fromkeys(("batch", "channels", "height", "width", "kernel height", "kernel width"), _LENGTHS),
    "padding": ("1", "0"),
    **dict.fromkeys(("input", "weight", "output gradient"), _ARRANGED),
}
CONVOLUTIONS: Mapping[str, tuple[Any, int, bool]] = {
    "conv1d": (F.conv1d, 1, False),
    "conv1d_depthwise": (F.conv1d, 1, True),
    "conv2d": (F.conv2d, 2, False),
    "conv2d_depthwise": (F.conv2d, 2, True),
    "conv_transpose2d": (F.conv_transpose2d, 2, False),
}
"""The convolutions, by name. Each consists of a function, its number of spatial dimensions, and whether each channel is a group."""


def _is_possible(row: Mapping[str, str]) -> bool:
    """Return whether the kernel fits into the padded image."""
    lengths = ((row.get(name, "3"), row.get(f"kernel {name}", "1")) for name in ("height", "width"))
    return all(int(length) + 2 * int(row.get("padding", "1")) >= int(kernel) for length, kernel in lengths)


def check_convolution(subject: Subject, name: str) -> None:
    """Compare results and gradients with those on the CPU, for combinations of layouts and lengths. For any two of these settings, every
    possible pair of values occurs.

    The elements are small integers, so that all results are exact. Differences are recorded in the subject.
    """
    for row in covering_rows(_AXES, _is_possible):
        with subject.sample(f"{name}: {', '.join(f'{axis} {value}' for axis, value in row.items())}", {"name": name, **row}):
            expected, found = (_results(name, row, device) for device in (torch.device("cpu"), subject.device))
            for what, mine, theirs in zip(("result", "input gradient", "weight gradient", "bias gradient"), found, expected, strict=True):
                subject.assert_on_device(mine)
                assert torch.equal(mine.cpu(), theirs), f"the {what} is {mine.flatten()[:8].tolist()}, not {theirs.flatten()[:8].tolist()}"


def _results(name: str, row: Mapping[str, str], device: torch.device) -> list[torch.Tensor]:
    function, num_dims, is_depthwise = CONVOLUTIONS[name]
    is_transposed = "transpose" in name
    channels, padding = int(row["channels"]), 0 if is_transposed else int(row["padding"])  # padding makes the result smaller if transposed
    sizes = [int(row[axis]) for axis in ("height", "width")][:num_dims]
    kernel = [int(row[f"kernel {axis}"]) for axis in ("height", "width")][:num_dims]
    weight_shape = [channels, 1 if is_depthwise else 2, *kernel] if is_depthwise or is_transposed else [2, channels, *kernel]
    given = [
        _there([int(row["batch"]), channels, *sizes], 0, row["input"], device),
        _there(weight_shape, 1, row["weight"], device),
        _there([channels if is_depthwise else 2], 2, "contiguous", device),
    ]
    inputs = [one.requires_grad_() for one in given]
    output = function(*inputs, padding=padding, groups=channels if is_depthwise else 1)
    gradient = _there(list(output.shape), 3, row["output gradient"], device)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient)]


def _there(shape: list[int], start: int, layout: str, device: torch.device) -> torch.Tensor:
    """Return a tensor of small integers with this layout on a device."""
    numbers = torch.arange(torch.Size(shape).numel()) * 5 + start
    return arranged((numbers % 7 - 3).float().view(shape).to(device), layout)
