"""Measurements of matmul, reductions, attention and convolution."""

from __future__ import annotations

import functools
from collections.abc import Callable

from accelkit.benchmarking.case import MEMORY, Case, Target

_ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
_MATMULS, _QUICK_MATMULS = (256, 1024, 4096), (64, 256)
_REDUCED, _QUICK_REDUCED = (1 << 16, 1 << 20, 1 << 26), (1 << 16, 1 << 20)
_ATTENTION, _QUICK_ATTENTION = ((8, 8, 256, 64), (4, 16, 2048, 64)), ((2, 4, 64, 32), (2, 4, 256, 32))
_CONVOLUTIONS, _QUICK_CONVOLUTIONS = ((32, 64, 56), (32, 256, 14)), ((4, 16, 32),)


def cases(is_quick: bool) -> list[Case]:
    """Return the measurements of operators. If ``is_quick``, there are fewer sizes, and they are smaller.

    Matmuls come first, because the fastest matmul in a dtype gives the peak rate of the dtype.
    """
    matmuls = [_matmul_case(dtype, size) for dtype in _ITEM_SIZES for size in (_QUICK_MATMULS if is_quick else _MATMULS)]
    reductions = [_reduction_case(name, size) for name in ("sum", "softmax") for size in (_QUICK_REDUCED if is_quick else _REDUCED)]
    attention = [
        _attention_case(dtype, shape) for dtype in ("float32", "bfloat16") for shape in (_QUICK_ATTENTION if is_quick else _ATTENTION)
    ]
    convolutions = [
        _convolution_case(dtype, shape)
        for dtype in ("float32", "bfloat16")
        for shape in (_QUICK_CONVOLUTIONS if is_quick else _CONVOLUTIONS)
    ]
    return matmuls + reductions + attention + convolutions


def _matmul_case(dtype: str, size: int) -> Case:
    flops, size_in_bytes = 2.0 * size**3, 3.0 * size**2 * _ITEM_SIZES[dtype]
    prepare = functools.partial(_matmul, dtype=dtype, size=size)
    work = {dtype: flops, MEMORY: size_in_bytes}
    return Case(f"matmul.{dtype}.{size}", "GFLOP/s", prepare, flops, work, peak_of=dtype, needs=(f"dtype.{dtype}",))


def _matmul(target: Target, *, dtype: str, size: int) -> Callable[[], object]:
    import torch

    x = torch.ones(size, size, dtype=getattr(torch, dtype), device=target.device)
    return lambda: x @ x


def _reduction_case(name: str, size: int) -> Case:
    """Return a case that measures the memory traffic per second of ``sum`` or ``softmax``.

    ``sum`` reads every element once. ``softmax``, which is computed over rows of 1024 elements, reads and writes every element once.
    """
    size_in_bytes = size * 4.0 * (2 if name == "softmax" else 1)
    prepare = functools.partial(_reduction, name=name, size=size)
    return Case(f"reduction.{name}.{size}", "GB/s", prepare, size_in_bytes, {MEMORY: size_in_bytes})


def _reduction(target: Target, *, name: str, size: int) -> Callable[[], object]:
    import torch

    x = torch.ones(size // 1024, 1024, device=target.device)
    return x.sum if name == "sum" else lambda: x.softmax(1)


def _attention_case(dtype: str, shape: tuple[int, int, int, int]) -> Case:
    """Return a case that measures attention: for each head, a matmul of queries and keys, and a matmul of attention weights and values.

    ``shape`` is (batch, heads, sequence length, head dimension). The attention weights do not count as memory traffic, because they need
    not be written to memory.
    """
    batch, heads, length, width = shape
    flops, size_in_bytes = 4.0 * batch * heads * length**2 * width, 4.0 * batch * heads * length * width * _ITEM_SIZES[dtype]
    prepare = functools.partial(_attention, dtype=dtype, shape=shape)
    name = f"attention.{dtype}.{batch}x{heads}x{length}x{width}"
    return Case(name, "GFLOP/s", prepare, flops, {dtype: flops, MEMORY: size_in_bytes}, needs=(f"dtype.{dtype}",))


def _attention(target: Target, *, dtype: str, shape: tuple[int, ...]) -> Callable[[], object]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    x = torch.ones(shape, dtype=getattr(torch, dtype), device=target.device)
    return lambda: scaled_dot_product_attention(x, x, x)


def _convolution_case(dtype: str, shape: tuple[int, int, int]) -> Case:
    """Return a case that measures a convolution of square images with a 3x3 kernel.

    ``shape`` is (batch, channels, side). The output has the shape of the input, because the images are padded by 1.
    """
    batch, channels, side = shape
    flops = 2.0 * batch * channels**2 * side**2 * 9
    size_in_bytes = (2.0 * batch * channels * side**2 + 9 * channels**2) * _ITEM_SIZES[dtype]
    prepare = functools.partial(_convolution, dtype=dtype, shape=shape)
    name = f"convolution.{dtype}.{batch}x{channels}x{side}x{side}"
    return Case(name, "GFLOP/s", prepare, flops, {dtype: flops, MEMORY: size_in_bytes}, needs=(f"dtype.{dtype}",))


def _convolution(target: Target, *, dtype: str, shape: tuple[int, int, int]) -> Callable[[], object]:
    import torch
    from torch.nn.functional import conv2d

    batch, channels, side = shape
    options = {"dtype": getattr(torch, dtype), "device": target.device}
    x, weight = torch.ones(batch, channels, side, side, **options), torch.ones(channels, channels, 3, 3, **options)
    return lambda: conv2d(x, weight, padding=1)
