"""Calls that torch's ``op_db`` does not make. Each function makes several calls on the given device and returns their results.

Random inputs are drawn on the CPU, so correct results are the same on every device, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit.runtime.comparison.cotangents import cotangents


def _floats(device: Any, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return (torch.rand(*shape, generator=generator) * 2 - 1).to(device)


def _ints(device: Any, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 6, shape, generator=generator).to(device)


def _shifts(device: Any) -> Any:
    x, y = _ints(device, 4), _ints(device, 4)
    x.__ilshift__(1)
    x.__irshift__(y)
    y.__ilshift__(y.clone())
    y.__irshift__(1)
    z = x.clone()
    z.bitwise_left_shift_(y)
    z.bitwise_right_shift_(y).bitwise_xor_(x)
    return x, y, z, x << 1, x >> 1, x << y, x >> y


def _in_place_integers(device: Any) -> Any:
    x, y = _ints(device, 6) + 1, _ints(device, 6) + 2
    return x.clone().gcd_(y), x.clone().lcm_(y), torch.isin(3, y), torch.isin(y, 3), torch.isin(x, y)


def _sets(device: Any) -> Any:
    x, y = _floats(device, 6), torch.empty(0, device=device)
    y.set_(x)
    empty = torch.ones(3, device=device)
    empty.set_()
    return y, y.is_set_to(x), x.is_set_to(y[1:]), empty.numel()


def _clamps(device: Any) -> Any:
    x = _floats(device, 8)
    return torch.clamp_max(x, 0.3), x.clone().clamp_max_(0.1), x.clone().fill_(x[0]), torch.clamp_min(x, 0.2), torch.remainder(3.0, x)


def _wide_reductions(device: Any) -> Any:
    """Return reductions of float16 and bfloat16 tensors, computed in float32. Some of the results are too large for float16."""
    x = 300 * _floats(device, 3, 1001)
    return [
        (
            *(torch.linalg.vector_norm(x.to(dtype), order, dtype=torch.float32) for order in (1, 2, 3, float("inf"))),
            *(torch.linalg.vector_norm(x.to(dtype), order, dim=dim, dtype=torch.float32) for order in (1, 2, 3) for dim in (0, 1)),
            *(reduce(x.to(dtype), dtype=torch.float32) for reduce in (torch.sum, torch.nansum, torch.mean)),
            *(reduce(x.to(dtype), 1, dtype=torch.float32) for reduce in (torch.cumsum, torch.softmax, torch.log_softmax)),
            (x[:, :7] / 30).to(dtype).prod(dtype=torch.float32), (x[:, :7] / 30).to(dtype).cumprod(1, dtype=torch.float32),
        )
        for dtype in (torch.float16, torch.bfloat16)
    ]  # fmt: skip


def _scatters(device: Any) -> Any:
    x, index = torch.ones(4, 5, device=device), _ints(device, 2, 5) % 4
    return (
        torch.scatter(x, 0, index, 2.0, reduce="multiply"),
        x.clone().scatter_(0, index[:1], 3.0, reduce="add"),
        x.clone().index_put_((index[0],), x[0]),
        torch.ops.aten._index_put_impl_(x.clone(), [index[0]], x[0]),
    )


def _uniques(device: Any) -> Any:
    x = _ints(device, 8, 2) % 2
    return torch.unique(x, dim=0, return_inverse=True, return_counts=True), torch.unique_consecutive(x, dim=0, return_counts=True)


def _searches(device: Any) -> Any:
    edges = torch.arange(5.0, device=device)
    return torch.bucketize(2.5, edges), torch.searchsorted(edges, 3.0), torch.searchsorted(edges, _floats(device, 3), right=True)


def _resampled(device: Any) -> Any:
    image, volume = _floats(device, 1, 2, 6, 6).requires_grad_(), _floats(device, 1, 2, 4, 4, 4).requires_grad_()
    results = [
        F.interpolate(image, size=(4, 3), mode="bicubic", antialias=True, align_corners=False),
        F.interpolate(image, size=(9, 4), mode="nearest-exact"),
        F.interpolate(volume, size=(3, 6, 5), mode="nearest-exact"),
        F.interpolate(volume, size=(3, 6, 5), mode="nearest"),
    ]
    return results, torch.autograd.grad(results, [image, volume], cotangents(results, "resampled"))


def _padded(device: Any) -> Any:
    image, volume = _floats(device, 1, 2, 5, 5).requires_grad_(), _floats(device, 1, 2, 4, 4, 4).requires_grad_()
    results = [
        F.pad(image, (1, 2, 2, 1), mode="reflect"),
        F.pad(volume, (1, 2, 2, 1, 1, 1), mode="reflect"),
        F.pad(volume, (1, 2, 2, 1, 1, 1), mode="replicate"),
    ]
    return results, torch.autograd.grad(results, [image, volume], cotangents(results, "padded"))


def _pooled(device: Any) -> Any:
    image, volume = _floats(device, 1, 2, 6, 6).requires_grad_(), _floats(device, 1, 2, 6, 6, 6).requires_grad_()
    results = [F.adaptive_avg_pool2d(image, (4, 3)), F.adaptive_avg_pool3d(volume, (4, 3, 2))]
    return results, torch.autograd.grad(results, [image, volume], cotangents(results, "pooled"))


def _aten(device: Any) -> Any:
    aten, x = torch.ops.aten, _floats(device, 4, 4)
    positive = x @ x.t() + 4 * torch.eye(4, device=device)
    return (
        aten._add_relu(x, x.t()),
        aten._add_relu(x, 0.5),
        aten._add_relu_(x.clone(), x.t()),
        aten._add_relu_(x.clone(), 0.5),
        aten._addmm_activation(x[0], x, x),
        aten._aminmax(x),
        aten._aminmax(x, 1),
        aten._cholesky_solve_helper(x, positive, False),
        aten._linalg_eigvals(positive).real.sort()[0],
        aten._logcumsumexp(x, 1),
        aten._stack([x, x], 0),
        aten._reshape_alias(x, [16], [1]),
        aten._int_mm(_ints(device, 32, 32).to(torch.int8), _ints(device, 32, 32).to(torch.int8)),
        aten._masked_softmax(x, (x > 0.9), 1),
        aten.batch_norm_update_stats(x, torch.zeros(4, device=device), torch.ones(4, device=device), 0.1),
        aten._native_batch_norm_legit(x, None, None, True, 0.1, 1e-5),
        torch.ops.aten.norm(x, 2, [0], False, dtype=torch.float64),
        torch.linalg.matrix_exp(x),
    )


def _whole_medians(device: Any) -> Any:
    x = _floats(device, 4, 6, 3)
    return x.median(), x.nanmedian()


def _rare(device: Any) -> Any:
    """Call ATen operators in ways that torch's ``op_db`` does not, and return the results.

    Operators that the installed torch lacks are skipped.
    """
    aten, x, y = torch.ops.aten, _floats(device, 3, 6), _floats(device, 3, 6) * 2
    indices, offsets = _ints(device, 7), torch.tensor([0, 2, 5], device=device)
    positive = x.abs() + 0.5
    calls: dict[str, tuple[Any, ...]] = {
        "_embedding_bag_forward_only": (x.t().contiguous(), indices, offsets),
        "_embedding_bag_dense_backward": (x, indices[:3], indices[:3] % 3, torch.ones_like(offsets), indices[:0], 6, False, 0, None),
        "_dirichlet_grad": (positive / 3, positive, positive.sum(1, keepdim=True).expand(3, 6).contiguous()),
        "_standard_gamma_grad": (positive, positive * 0.7),
        "unique_dim_consecutive": (_ints(device, 8, 2) % 2, 0, True, True),
        "glu_backward_jvp": (x, x[:, :3].contiguous(), y, y[:, :3].contiguous(), x * y, 1),
        "_compute_linear_combination": (x, y[:, :3].contiguous()),
        "linalg__powsum": (positive, 3, [1]),
        "_upsample_lanczos2d_aa": (_floats(device, 1, 2, 6, 6), [4, 3], False),
        "_upsample_lanczos2d_aa_backward": (_floats(device, 1, 2, 4, 3), [4, 3], [1, 2, 6, 6], False),
    }
    return [getattr(aten, name)(*args) for name, args in calls.items() if hasattr(aten, name)] + _bags_before_the_last_offset(device)


def _bags_before_the_last_offset(device: Any) -> list[torch.Tensor]:
    """Return the results of ``embedding_bag`` for two bags, in the modes ``sum`` and ``mean``. The last offset is smaller than the number
    of indices, so the last index is in no bag.

    The mode ``max`` and gradients are left out, because torch computes them incorrectly on the CPU.
    """
    w, index, offsets = _floats(device, 6, 3), torch.arange(4, device=device), torch.tensor([0, 2, 3], device=device)
    with torch.no_grad():
        return [F.embedding_bag(index, w, offsets, mode=mode, include_last_offset=True) for mode in ("sum", "mean")]


def _masked_softmax(device: Any) -> Any:
    x = _floats(device, 3, 6).requires_grad_()
    result = torch.ops.aten._masked_softmax(x, _floats(device, 3, 6) > 0.5, 1, 2)
    return result, torch.autograd.grad([result], [x], cotangents([result], "masked_softmax"))


def _weight_norm(device: Any) -> Any:
    v, g = _floats(device, 3, 4).requires_grad_(), _floats(device, 3, 1).requires_grad_()
    result = torch._weight_norm(v, g, 0)
    return result, torch.autograd.grad([result], [v, g], cotangents([result], "weight_norm"))


def _fast_transformer(device: Any) -> Any:
    torch.default_generator.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = _floats(device, 2, 5, 8)
    with torch.no_grad():
        attention = attention.to(device)
        return layer.to(device)(x), attention(x, x, x, need_weights=False)[0]


def _truth_of_complex_numbers(device: Any) -> Any:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([0, 1j, 1, -1j, -2, complex(nan, 0), complex(0, nan), complex(0, inf), complex(0, -0.0), 1e-30j] * 4).to(device)
    y, z = x.flip(0), x.view(5, 8)
    return (
        x.logical_not(), x.logical_and(y), x.logical_or(y), x.logical_xor(y), x.clone().logical_or_(y), x.bool(), x == 0, x != y,
        x.nonzero(), x.count_nonzero(), z.count_nonzero(0), z.any(1), z.all(1), x[:1].any(), x[1:5].all(), x.isnan(), x.isinf(),
        x.isfinite(),
    )  # fmt: skip


def _tangents(device: Any) -> Any:
    x = _floats(device, 4, 6)
    return torch.func.jvp(F.glu, (x,), (x * 2,)), torch.func.jvp(torch.sigmoid, (x,), (x,))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "shifts": _shifts,
    "in_place_integers": _in_place_integers,
    "sets": _sets,
    "clamps": _clamps,
    "wide_reductions": _wide_reductions,
    "scatters": _scatters,
    "uniques": _uniques,
    "searches": _searches,
    "resampled": _resampled,
    "padded": _padded,
    "pooled": _pooled,
    "aten": _aten,
    "whole_medians": _whole_medians,
    "rare": _rare,
    "masked_softmax": _masked_softmax,
    "weight_norm": _weight_norm,
    "fast_transformer": _fast_transformer,
    "tangents": _tangents,
    "truth_of_complex_numbers": _truth_of_complex_numbers,
}
