"""Calls to normalizations, distances, activations, reductions and rearrangements, with combinations of keyword arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.differentiable import random_inputs

Call = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]
"""A function, its tensors and its keyword arguments."""


def product(function: Callable[..., Any], inputs: Sequence[Any], **values: Sequence[Any]) -> Iterator[Call]:
    """Yield a call for each combination of values of the keyword arguments."""
    for combination in itertools.product(*values.values()):
        yield function, inputs, dict(zip(values, combination, strict=True))


def embedding(weight: torch.Tensor, index: torch.Tensor, *, max_norm: float | None, padding_idx: int | None, **how: Any) -> torch.Tensor:
    """Look rows up in a copy of the weight, because ``max_norm`` changes the weight.

    Raises:
        ValueError: If ``max_norm`` is given and the weight is complex, because PyTorch limits the norms of complex rows only on the CPU,
            or if the weight has no row ``padding_idx``.
    """
    if (max_norm is not None and weight.is_complex()) or (padding_idx is not None and padding_idx >= len(weight)):
        raise ValueError("the weight does not fit the options")
    return F.embedding(index, weight.clone(), max_norm=max_norm, padding_idx=padding_idx, **how)


def _norms() -> Iterator[Call]:
    weight, bias = random_inputs((4,), (4,))
    for shape in ((3, 4), (2, 4, 5), (2, 4, 3, 5), (2, 4, 3, 2, 3)):
        x = random_inputs(shape)
        scales: dict[str, Any] = {"weight": [None, weight], "bias": [None, bias]}
        training = {"running_mean": [None], "running_var": [None], "training": [True]}
        evaluation = {"running_mean": [bias.clone()], "running_var": [weight.abs() + 0.5], "training": [False]}
        for mode in (training, evaluation):
            yield from product(F.batch_norm, x, **mode, **scales, eps=[1e-5, 0.3])
        yield from product(F.group_norm, x, num_groups=[1, 2, 4], **scales, eps=[1e-5, 0.3])
        if len(shape) > 2:
            yield from product(F.instance_norm, x, **scales, eps=[1e-5, 0.3])
            yield from product(F.local_response_norm, x, size=[1, 2, 3], alpha=[1e-4, 0.5], beta=[0.75, 0.5], k=[1.0, 2.0])
    x, weight, bias = random_inputs((2, 3, 4, 5), (4, 5), (4, 5))
    yield from product(F.layer_norm, (x,), normalized_shape=[(4, 5)], weight=[None, weight], bias=[None, bias], eps=[1e-5, 0.3])
    yield from product(F.layer_norm, (x,), normalized_shape=[(5,)], weight=[None, weight[0]], bias=[None, bias[0]])
    yield from product(F.rms_norm, (x,), normalized_shape=[(4, 5)], weight=[None, weight], eps=[None, 0.3])
    yield from product(F.rms_norm, (x,), normalized_shape=[(5,)], weight=[None, weight[0]], eps=[None, 0.3])
    yield from product(F.normalize, (x,), p=[1.0, 2.0, 3.0], dim=[0, 1, -1, (2, 3)], eps=[1e-12, 2.0])


def _distances() -> Iterator[Call]:
    orders = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, float("inf")]
    modes = ["use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"]
    for rows in ((3, 5), (30, 2), (1, 1)):
        yield from product(torch.cdist, random_inputs((rows[0], 4), (rows[1], 4)), p=orders, compute_mode=modes[:1])
        yield from product(torch.cdist, random_inputs((2, rows[0], 4), (2, rows[1], 4)), p=[2.0], compute_mode=modes)
    yield from product(torch.cdist, random_inputs((3, 1), (2, 1)), p=orders)
    yield from product(torch.pdist, random_inputs((5, 4)), p=orders)
    yield from product(F.pairwise_distance, random_inputs((5, 4), (5, 4)), p=orders, eps=[1e-6, 0.1], keepdim=[True, False])
    yield from product(torch.dist, random_inputs((5, 4), (5, 4)), p=orders)
    yield from product(torch.renorm, random_inputs((3, 4, 2)), p=orders[1:-1], dim=[0, 1, -1], maxnorm=[0.5, 100.0])
    yield from product(F.cosine_similarity, random_inputs((3, 4, 5), (3, 4, 5)), dim=[0, 1, 2], eps=[1e-8, 3.0])
    yield from product(F.cosine_similarity, random_inputs((3, 1, 5), (4, 5)), dim=[-1])
    yield from product(
        F.triplet_margin_loss, random_inputs((5, 4), (5, 4), (5, 4)), p=[1.0, 2.0, 3.0], swap=[True, False], margin=[0.2, 2.0]
    )
    orders = [0.5, 1.0, 1.5, 2.0, 3.0, -1.0, -2.0, float("inf"), -float("inf")]
    for dim in (None, 0, 1, -1, (0, 2), (0, 1, 2)):
        yield from product(torch.linalg.vector_norm, random_inputs((3, 4, 5)), ord=orders, dim=[dim], keepdim=[True, False])


def _activations() -> Iterator[Call]:
    x = [random_inputs((3, 4, 10))[0] * 4]
    yield from product(F.elu, x, alpha=[0.5, 1.0, 2.0])
    yield from product(F.celu, x, alpha=[0.5, 1.0, 2.0])
    yield from product(F.leaky_relu, x, negative_slope=[0.0, 0.01, 0.5, 2.0, -0.5])
    yield from product(F.hardtanh, x, min_val=[-2.0, -0.5], max_val=[0.5, 3.0])
    yield from product(F.hardshrink, x, lambd=[0.0, 0.5, 2.0])
    yield from product(F.softshrink, x, lambd=[0.0, 0.5, 2.0])
    yield from product(F.threshold, x, threshold=[-1.0, 0.0, 0.5], value=[0.0, 3.0])
    yield from product(F.softplus, x, beta=[0.5, 1.0, 3.0], threshold=[1.0, 20.0])
    yield from product(F.gelu, x, approximate=["none", "tanh"])
    yield from product(F.glu, x, dim=[1, -1])
    yield from product(F.softmax, x, dim=[0, 1, -1], dtype=[None, torch.float32])
    yield from product(F.log_softmax, x, dim=[0, 1, -1])
    yield from product(F.softmin, x, dim=[0, 1, -1])
    yield from product(torch.clamp, x, min=[None, -1.0], max=[0.5, 2.0])
    yield from product(torch.clamp, (*x, *random_inputs((1, 1, 10), (3, 1, 10))))
    yield from product(F.prelu, x, weight=[random_inputs((1,))[0], random_inputs((4,))[0]])
    yield from product(torch.logit, [x[0].sigmoid()], eps=[None, 0.1, 0.3])
    yield from product(torch.pow, [x[0].abs() + 0.1], exponent=[-2, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4])
    yield from product(torch.pow, x, exponent=[-2, -1, 0, 1, 2, 3, 4])


def _reductions() -> Iterator[Call]:
    x = random_inputs((3, 4, 5))
    dims = [0, 1, -1, (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    for reduce in (torch.sum, torch.mean, torch.amax, torch.amin, torch.logsumexp, torch.nansum, torch.nanmean):
        yield from product(reduce, x, dim=dims, keepdim=[True, False])
    for reduce in (torch.var, torch.std):
        yield from product(reduce, x, dim=dims, correction=[0, 1, 2], keepdim=[True, False])
    for reduce in (torch.prod, torch.cumsum, torch.cumprod, torch.logcumsumexp):
        yield from product(reduce, x, dim=[0, 1, -1])
    for choose in (torch.max, torch.min, torch.median, torch.nanmedian, torch.cummax, torch.cummin):
        yield from product(choose, x, dim=[0, 1, -1])
    yield from product(torch.quantile, x, q=[0.0, 0.3, 1.0], dim=[None, 0, -1], interpolation=["linear", "lower", "higher", "midpoint"])
    yield from product(torch.nanquantile, x, q=[0.3], dim=[None, 1], keepdim=[True, False])
    yield from product(torch.diff, x, n=[1, 2], dim=[0, 1, -1])
    yield from product(torch.gradient, x, spacing=[1.0, 0.5], dim=[0, 1, -1], edge_order=[1, 2])
    yield from product(torch.trapezoid, x, dx=[1.0, 0.5], dim=[0, 1, -1])
    yield from product(torch.cumulative_trapezoid, x, dx=[0.5], dim=[0, -1])


def _rearrangements() -> Iterator[Call]:
    image = random_inputs((2, 8, 4, 6))
    yield from product(F.pixel_shuffle, image, upscale_factor=[1, 2])
    yield from product(F.pixel_unshuffle, image, downscale_factor=[1, 2])
    yield from product(F.channel_shuffle, image, groups=[1, 2, 4])
    windows: dict[str, Any] = {"kernel_size": [2, (1, 3)], "dilation": [1, (1, 2)], "padding": [0, (1, 0)], "stride": [1, (2, 3)]}
    yield from product(F.unfold, image, **windows)
    for call, inputs, how in product(F.unfold, image, **windows):
        yield F.fold, [call(*inputs, **how)], {"output_size": (4, 6), **how}
    x = random_inputs((3, 4, 5))
    yield from product(torch.roll, x, shifts=[1, -2, 7], dims=[None, 0, -1])
    yield from product(torch.roll, x, shifts=[(1, -1)], dims=[(0, 2), (1, 1)])
    yield from product(torch.flip, x, dims=[(0,), (1,), (0, 2), (0, 1, 2)])
    yield from product(torch.rot90, x, k=[-1, 0, 1, 2, 3], dims=[(0, 1), (2, 0)])
    yield from product(torch.repeat_interleave, x, repeats=[1, 3], dim=[None, 0, -1])
    yield from product(torch.tile, x, dims=[(2,), (2, 1, 3), (1, 2, 1, 1)])
    yield from product(torch.narrow_copy, x, dim=[0, 2], start=[0, 1], length=[1, 2])
    yield from product(torch.movedim, x, source=[0, -1], destination=[1, -1])
    yield from product(lambda *given, dim: torch.cat(given, dim), (*x, *x), dim=[0, 1, -1])
    yield from product(lambda *given, dim: torch.stack(given, dim), (*x, *x), dim=[0, 1, -1])
    yield from product(torch.unfold_copy, x, dimension=[0, 2], size=[1, 2, 3], step=[1, 2])


def _products() -> Iterator[Call]:
    factors: dict[str, Any] = {"beta": [0, 0.5, 1, -2], "alpha": [0, 0.5, 1]}
    a, b, c, v, w = random_inputs((3, 4), (3, 5), (5, 4), (5,), (3,))
    for added in (a, a[:1], a[:, :1], a[0]):
        yield from product(torch.addmm, (added, b, c), **factors)
        yield from product(torch.baddbmm, (added, b.expand(2, 3, 5), c.expand(2, 5, 4)), **factors)
        yield from product(torch.addbmm, (added, b.expand(2, 3, 5), c.expand(2, 5, 4)), **factors)
    yield from product(torch.addmv, (w, b, v), **factors)
    yield from product(torch.addmv, (w[:1], b, v), **factors)
    yield from product(torch.addr, (b, w, v), **factors)
    for call in (torch.add, torch.sub):
        yield from product(call, (a, a + 1), alpha=[-1, 0, 1, 2, 0.5])
    for call in (torch.addcmul, torch.addcdiv):
        yield from product(call, (a, a[:1], a.abs() + 1), value=[-1, 0, 1, 2, 0.5])
    yield from product(torch.lerp, (a, a + 1), weight=[0.0, 0.3, 0.5, 0.7, 1.0, 2.0])
    yield from product(F.linear, (b, c.t(), a[0]))
    yield from product(F.bilinear, (b, b, random_inputs((2, 5, 5))[0]), bias=[None, a[0, :2]])


def _attention() -> Iterator[Call]:
    queries, keys, values, bias = random_inputs((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6), (3, 5))
    for mask in (None, bias, bias > -0.5, bias.expand(2, 1, 3, 5), (bias > 9)):
        yield from product(F.scaled_dot_product_attention, (queries, keys, values), attn_mask=[mask], scale=[None, 0.0, 2.0])
    yield from product(F.scaled_dot_product_attention, (queries, keys, values), is_causal=[True], scale=[None, 0.5])
    yield from product(F.scaled_dot_product_attention, (queries, keys[:, :1], values[:, :1]), enable_gqa=[True], is_causal=[True, False])


def _add_at(x: Any, rows: Any, values: Any, **how: Any) -> Any:
    return x.index_put((rows,), values, **how)


def _whole_reductions() -> Iterator[Call]:
    x = random_inputs((3, 4, 5))
    positive = [x[0].abs() * 16]  # what a conversion of a negative number to uint8 gives is not defined
    for given, dtypes in ((x, [None, torch.float32, torch.float64]), (positive, [torch.int64, torch.int32, torch.uint8, torch.bool])):
        for reduce in (torch.sum, torch.prod, torch.mean, torch.nansum):
            yield from product(reduce, given, dtype=dtypes)
            yield from product(reduce, given, dim=[0, -1], dtype=dtypes)
        for scan in (torch.cumsum, torch.cumprod):
            yield from product(scan, given, dim=[0, -1], dtype=dtypes)
    for given in ([x[0].half()], [x[0].bfloat16()]):
        for reduce in (torch.sum, torch.prod, torch.mean, torch.nansum):
            yield from product(reduce, given, dim=[0, -1], dtype=[torch.float32])
        for along in (torch.cumsum, torch.cumprod, torch.softmax, torch.log_softmax):
            yield from product(along, given, dim=[0, -1], dtype=[torch.float32])
    for reduce in (torch.std, torch.var):
        yield from product(reduce, x, unbiased=[True, False])
        yield from product(reduce, x, dim=[None], correction=[0, 1, 2])
        yield reduce, x, {}
    for reduce in (torch.std_mean, torch.var_mean):
        yield from product(reduce, x, dim=[None, 0, (1, 2)], correction=[0, 1])
    for reduce in (torch.amax, torch.amin, torch.max, torch.min, torch.argmax, torch.argmin, torch.all, torch.any, torch.count_nonzero):
        yield reduce, x, {}
    for reduce in (torch.argmax, torch.argmin, torch.all, torch.any):
        yield from product(reduce, x, dim=[0, 1, -1], keepdim=[True, False])
    yield from product(torch.count_nonzero, x, dim=[None, 0, (0, 2)])
    yield from product(torch.norm, x, p=[0, 1, 2, 3, float("inf"), "fro"])
    yield from product(torch.aminmax, x, dim=[None, 0, -1], keepdim=[True, False])


def _writes() -> Iterator[Call]:
    x, values = random_inputs((4, 3), (5, 3))
    rows = torch.tensor([0, 2, 2, 3, 0])
    index = rows[:, None].expand(5, 3)
    means = {"dim": [0], "reduce": ["prod", "mean", "amax", "amin"], "include_self": [True, False]}
    yield from product(torch.scatter_reduce, (x,), index=[index], src=[values], **means)
    yield from product(torch.scatter_reduce, (x,), dim=[0], index=[index], src=[values], reduce=["sum"], include_self=[True, False])
    yield from product(torch.index_reduce, (x,), index=[rows], source=[values], **means)
    yield from product(torch.index_add, (x,), dim=[0], index=[rows], source=[values], alpha=[-1, 0, 1, 0.5, 2])
    yield from product(torch.scatter_add, (x,), dim=[0], index=[index], src=[values])
    distinct = torch.tensor([2, 0, 3])
    yield from product(torch.index_copy, (x,), dim=[0], index=[distinct], source=[values[:3]])
    yield from product(torch.index_fill, (x,), dim=[0], index=[rows], value=[-1, 0.5, 0])
    yield from product(torch.scatter, (x,), dim=[0], index=[distinct[:, None].expand(3, 3)], src=[values])
    yield from product(torch.scatter, (x,), dim=[0], index=[index], value=[-1, 0.5, 0])
    yield from product(torch.masked_scatter, (x, x > 0, values))
    yield from product(_add_at, (x, rows, values), accumulate=[True])
    yield from product(torch.put, (x, rows, values[:, 0]), accumulate=[True])
    yield from product(torch.take_along_dim, (x, index), dim=[0])
    yield from product(torch.select_scatter, (x, values[0]), dim=[0], index=[0, -1])
    yield from product(torch.slice_scatter, (x, values[:2]), dim=[0], start=[0, 2], end=[2, 4])
    yield from product(torch.diagonal_scatter, (x, values[0]), offset=[0])


FUNCTIONS: Mapping[str, Callable[[], Iterator[Call]]] = {
    "norms": _norms,
    "distances": _distances,
    "activations": _activations,
    "reductions": _reductions,
    "rearrangements": _rearrangements,
    "products": _products,
    "attention": _attention,
    "whole_reductions": _whole_reductions,
    "writes": _writes,
}
"""Functions by name. Each yields calls."""
