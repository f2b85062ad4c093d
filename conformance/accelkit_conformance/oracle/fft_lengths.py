"""Fourier transforms of many lengths.

Libraries for such transforms choose an algorithm by the prime factors of the length, and keep a plan for each length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.well_conditioned import random_numbers

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LENGTHS: Sequence[int] = (
    *range(1, 34),
    64, 127, 128, 131, 243, 251, 255, 256, 1000, 1021, 1024, 2048, 4096, 4099, 8191, 8192, 8193, 10_007, 16_384, 49_951, 65_536, 65_537,
)  # fmt: skip
_SHORT = 33
_LONG = 5000
"""Transforms that are longer than this are tested only with one row."""
_SHAPES: Sequence[tuple[int, ...]] = ((4096, 3), (3, 4099), (127, 128), (5, 33, 64), (2, 9, 7, 16))
_BATCHES: Mapping[tuple[int, ...], tuple[int, ...]] = {
    (50, 16, 12, 10): (-3, -2, -1),
    (7001, 4, 3): (-2, -1),
    (3, 7, 30, 8): (0, 2),
}
"""Shapes, each with the dimensions that are transformed."""

FUNCTIONS: Mapping[str, tuple[Callable[..., torch.Tensor], bool]] = {
    "fft": (torch.fft.fft, True),
    "ifft": (torch.fft.ifft, True),
    "rfft": (torch.fft.rfft, False),
    "irfft": (torch.fft.irfft, True),
    "hfft": (torch.fft.hfft, True),
    "ihfft": (torch.fft.ihfft, False),
    "fftn": (torch.fft.fftn, True),
    "ifftn": (torch.fft.ifftn, True),
    "rfftn": (torch.fft.rfftn, False),
    "irfftn": (torch.fft.irfftn, True),
}
"""The transforms, by name, each with whether its input is complex."""


def check_lengths(subject: Subject, name: str, dtype: str) -> None:
    """Compare transforms of all lengths or shapes with those on the CPU. The longer ones are then compared again, in the opposite order.

    Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the transform in ``FUNCTIONS``.
        dtype: The dtype of the real input, or of the parts of the complex input.
    """
    transform, is_complex = FUNCTIONS[name]
    chosen = getattr(torch, dtype)
    calls = [*_calls(name)]
    for shape, options in [*calls, *(call for call in reversed(calls) if max(call[0]) > _SHORT)]:
        lengths = options.get("s", (options.get("n", 1),))
        values = random_numbers(shape, chosen.to_complex() if is_complex else chosen)
        with subject.sample(f"{name} of {dtype} numbers of shape {shape}, {options}", {"name": name, "dtype": dtype, **options}):
            compare_call(subject, lambda x, options=options: transform(x, **options), (values,), num_terms=math.prod(lengths))


def _calls(name: str) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yield the shape of the input and the keyword arguments of each call. An inverse of a real transform takes half of the frequencies."""
    is_half = name in ("irfft", "hfft", "irfftn")
    if name.endswith("n"):
        for shape in _SHAPES:
            yield (*shape[:-1], shape[-1] // 2 + 1) if is_half else shape, {"s": shape}
        for shape, dims in _BATCHES.items():
            lengths = [*shape]
            lengths[dims[-1]] = lengths[dims[-1]] // 2 + 1 if is_half else lengths[dims[-1]]
            yield tuple(lengths), {"s": tuple(shape[dim] for dim in dims), "dim": dims}
        return
    for length in _LENGTHS:
        size = length // 2 + 1 if is_half else length
        if length > _SHORT:
            yield (size,), {"n": length}
            for _ in range(2 if length > _LONG else 1):
                yield (size // 3 + 1, 1), {"n": length, "dim": 0}  # the input is padded with zeros
        if length < _LONG:
            yield (size, 3), {"n": length, "dim": 0}
            yield (3, size), {"n": length, "dim": -1}
