"""Convolutions with dimensions of length 1, whose input, weight and output gradient have different memory layouts.

Libraries choose the kernel and the memory format of a convolution from strides, which are ambiguous if a dimension has length 1.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.layouts import LAYOUTS, MORE_LAYOUTS, arranged

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LAYOUTS = ("contiguous", *LAYOUTS, *MORE_LAYOUTS)
_CHANNELS = (1, 3)
_IMAGES = _KERNELS = ((1, 1), (1, 3), (3, 3))
_PADDINGS = (1, 0)
CONVOLUTIONS: Mapping[str, tuple[Any, int, bool]] = {
    "conv1d": (F.conv1d, 1, False),
    "conv1d_depthwise": (F.conv1d, 1, True),
    "conv2d": (F.conv2d, 2, False),
    "conv2d_depthwise": (F.conv2d, 2, True),
    "conv_transpose2d": (F.conv_transpose2d, 2, False),
}
"""The convolutions, by name. Each consists of a function, its number of spatial dimensions, and whether each channel is a group."""


def check_convolution(subject: Subject, name: str) -> None:
    """Compare results and gradients with those on the CPU, for all combinations of lengths and layouts of the weight. The layouts of the
    input and of the output gradient change from call to call.

    The elements are small integers, so that all results are exact. Differences are recorded in the subject.
    """
    sizes = list(itertools.product(_CHANNELS, _IMAGES, _KERNELS, _PADDINGS))
    for (number, size), (place, layout) in itertools.product(enumerate(sizes), enumerate(_LAYOUTS)):
        channels, image, kernel, padding = size
        if any(length + 2 * padding < width for length, width in zip(image, kernel, strict=True)):
            continue  # the kernel does not fit into the padded image
        others = [_LAYOUTS[(number + step * place) % len(_LAYOUTS)] for step in (3, 7)]
        layouts = (others[0], layout, others[1])
        what = f"{channels} channels, image {image}, kernel {kernel}, padding {padding}, layouts {layouts}"
        with subject.sample(f"{name}: {what}", {"name": name, "channels": channels}):
            call = functools.partial(_results, name, (1, 3)[(number + place) % 2], channels, image, kernel, padding, layouts)
            try:
                expected = call(torch.device("cpu"))
            except RuntimeError:  # torch 2.13 rejects some weights with strides that are ambiguous
                continue
            found = call(subject.device)
            for part, mine, theirs in zip(("result", "input gradient", "weight gradient", "bias gradient"), found, expected, strict=True):
                subject.assert_on_device(mine)
                # The numbers are integers, apart from the rounding errors of fast algorithms such as Winograd's.
                is_right = mine.shape == theirs.shape and bool((mine.cpu() - theirs).abs().lt(0.1).all())
                assert is_right, f"the {part} is {mine.flatten()[:8].tolist()}, not {theirs.flatten()[:8].tolist()}"


def _results(  # noqa: PLR0917 # functools.partial fills all but the last
    name: str,
    batch: int,
    channels: int,
    image: Sequence[int],
    kernel: Sequence[int],
    padding: int,
    layouts: Sequence[str],
    device: torch.device,
) -> list[torch.Tensor]:
    """Return the result and the gradients of a convolution. ``layouts`` are those of the input, the weight and the output gradient."""
    function, num_dims, is_depthwise = CONVOLUTIONS[name]
    is_transposed = "transpose" in name
    image, kernel = image[-num_dims:], kernel[-num_dims:]
    of_weight = [channels, 1] if is_depthwise else [channels, 2] if is_transposed else [2, channels]
    inputs = [
        _there([batch, channels, *image], 0, layouts[0], device).requires_grad_(),
        _there([*of_weight, *kernel], 1, layouts[1], device).requires_grad_(),
        _there([channels if is_depthwise else 2], 2, "contiguous", device).requires_grad_(),
    ]
    # padding makes the result of a transposed convolution smaller
    output = function(*inputs, padding=0 if is_transposed else padding, groups=channels if is_depthwise else 1)
    gradient = _there(list(output.shape), 3, layouts[2], device)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient)]


def _there(shape: list[int], start: int, layout: str, device: torch.device) -> torch.Tensor:
    """Return a tensor of small integers with this layout on a device."""
    numbers = torch.arange(torch.Size(shape).numel()) * 5 + start
    return arranged((numbers % 7 - 3).float().view(shape).to(device), layout)
