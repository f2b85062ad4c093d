"""Gradients where a function is not smooth: at bounds, at zero, at infinity and where several elements are equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_INF, _NAN = math.inf, math.nan
_Function = Callable[..., torch.Tensor]

_AROUND = (-_INF, -30.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 30.0, _INF, _NAN)
"""Bounds of the functions in ``_POINTWISE``, and other special numbers."""

_POINTWISE: Mapping[str, _Function] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 2.0),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.2], device=x.device, dtype=x.dtype)),
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.5),
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "softplus": lambda x: F.softplus(x, threshold=3.0),
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "sign": torch.sign,
    "clamp": lambda x: x.clamp(-0.5, 1.0),
    "clamp_min": lambda x: x.clamp_min(0.0),
    "clamp_to_a_tensor": lambda x: x.clamp(torch.zeros_like(x), torch.ones_like(x)),
    "square_root": torch.sqrt,
    "pow_0": lambda x: x.pow(0),
    "pow_0.5": lambda x: x.pow(0.5),
    "pow_2": lambda x: x.pow(2),
    "zero_to_the_power": lambda x: 0.0**x,
    "log": torch.log,
    "log1p": torch.log1p,
    "asin": torch.asin,
    "sinc": torch.sinc,
    "xlogy": lambda x: torch.xlogy(x, x),
    "entr": torch.special.entr,
    "reciprocal": torch.reciprocal,
    "nan_to_num": lambda x: x.nan_to_num(1.0, 2.0, 3.0),
    "where": lambda x: torch.where(x > 0, x.sqrt(), x * 2),
    "masked_fill": lambda x: x.masked_fill(x.isnan(), 0.0),
    "fmod": lambda x: torch.fmod(x, 1.5),
    "round": torch.round,
    "logit": lambda x: torch.logit(x, eps=1e-3),
    "dropout_of_all": lambda x: F.dropout(x, 1.0),
}

_Values = Sequence[Any]
_OTHERS: Mapping[str, tuple[_Function, tuple[_Values, ...]]] = {
    "maximum": (torch.maximum, ([1.0, 2.0, 0.0], [1.0, 1.0, -0.0])),
    "minimum": (torch.minimum, ([1.0, 2.0, 0.0], [1.0, 1.0, -0.0])),
    "amax": (lambda x: x.amax(1), ([[2.0, 2.0, 1.0, 2.0], [0.0, 3.0, 3.0, -1.0]],)),
    "amin": (lambda x: x.amin(), ([[2.0, -2.0, -2.0], [0.0, 3.0, -2.0]],)),
    "max_of_all": (lambda x: x.max(), ([[2.0, 3.0, 1.0], [0.0, 3.0, 3.0]],)),
    "prod_of_one_zero": (lambda x: x.prod(1), ([[2.0, 0.0, 3.0], [1.0, 2.0, 3.0]],)),
    "prod_of_two_zeros": (lambda x: x.prod(), ([2.0, 0.0, 3.0, 0.0],)),
    "cumprod_with_zeros": (lambda x: x.cumprod(1), ([[2.0, 0.0, 3.0, 4.0], [1.0, 0.0, 0.0, 3.0]],)),
    "norm_of_zeros": (lambda x: torch.linalg.vector_norm(x, dim=1), ([[0.0, 0.0], [3.0, 4.0]],)),
    "norm_1_of_zeros": (lambda x: torch.linalg.vector_norm(x, 1.0, dim=1), ([[0.0, 2.0], [0.0, 0.0]],)),
    "norm_inf_with_ties": (lambda x: torch.linalg.vector_norm(x, _INF, dim=1), ([[3.0, -3.0], [0.0, 0.0]],)),
    "normalize_zeros": (lambda x: F.normalize(x, dim=1), ([[0.0, 0.0], [3.0, 4.0]],)),
    "cosine_similarity_of_zeros": (F.cosine_similarity, ([[0.0, 0.0], [3.0, 4.0]], [[1.0, 2.0], [0.0, 0.0]])),
    "cdist_of_equal_points": (torch.cdist, ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [0.0, 0.0]])),
    "cdist_1": (lambda x, y: torch.cdist(x, y, p=1.0), ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [3.0, 4.0]])),
    "pdist": (F.pdist, ([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]],)),
    "atan2": (torch.atan2, ([0.0, 0.0, 1.0, -0.0], [0.0, -1.0, 0.0, 1.0])),
    "hypot": (torch.hypot, ([3.0, 0.0], [4.0, 1.0])),
    "division_by_zero": (torch.div, ([1.0, 0.0, -1.0], [0.0, 2.0, 0.0])),
    "pow": (torch.pow, ([0.0, 0.0, 2.0, 1.0, 0.0], [0.0, 2.0, 0.0, 3.0, 1.0])),
    "logsumexp": (lambda x: x.logsumexp(1), ([[-_INF, 1.0, 2.0], [5.0, 5.0, -200.0]],)),
    "logaddexp": (torch.logaddexp, ([-_INF, 100.0, 1.0], [1.0, 100.0, 1.0])),
    "log_softmax_of_large_numbers": (lambda x: x.log_softmax(1), ([[-1e7, -1e7 + 2, -1e7 + 3], [3e6, 3e6 + 1, 3e6 - 4]],)),
    "softmax_of_large_numbers": (lambda x: x.softmax(1), ([[-1e7, -1e7 + 2, -1e7 + 3], [3e6, 3e6 + 1, 3e6 - 4]],)),
    "logsumexp_of_large_numbers": (lambda x: x.logsumexp(1), ([[-1e7, -1e7 + 2, -1e7 + 3], [3e6, 3e6 + 1, 3e6 - 4]],)),
    "softmax": (lambda x: x.softmax(1), ([[-_INF, 1.0, 2.0], [100.0, 0.0, -100.0]],)),
    "log_softmax": (lambda x: x.log_softmax(1), ([[-1e30, 1.0, 2.0], [100.0, 0.0, -100.0]],)),
    "std_of_equal_elements": (lambda x: x.var(1) + x.std(1), ([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]],)),
    "l1_loss": (F.l1_loss, ([1.0, 2.0, -1.0], [1.0, 1.0, 0.0])),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), ([1.0, 0.5, -0.5, 3.0], [1.0, 0.0, 0.0, 0.0])),
    "huber_loss": (lambda x, y: F.huber_loss(x, y, delta=0.5), ([1.0, 0.5, -0.5, 3.0], [1.0, 0.0, 0.0, 0.0])),
    "margin_ranking_loss": (lambda x, y: F.margin_ranking_loss(x, y, y.detach().sign()), ([1.0, 2.0, 0.0], [1.0, 1.0, -1.0])),
    "hinge_embedding_loss": (lambda x, y: F.hinge_embedding_loss(x * y, y.detach()), ([1.0, 0.5, -1.0], [1.0, -1.0, -1.0])),
    "binary_cross_entropy": (lambda x, y: F.binary_cross_entropy(x, y.detach()) + y.sum(), ([0.0, 1.0, 0.5], [1.0, 1.0, 0.0])),
    "kl_div": (lambda x, y: F.kl_div(x, y.detach(), reduction="sum") + y.sum(), ([-1.0, -2.0, -3.0], [0.0, 1.0, 0.5])),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), ([[[[1.0, 1.0, 0.0, 2.0], [1.0, 0.0, 2.0, 2.0]]]],)),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 2), ([[[3.0, 3.0, 1.0, 0.0, 0.0]]],)),
    "batch_norm_of_equal_elements": (lambda x: F.batch_norm(x, None, None, training=True), ([[2.0, 1.0], [2.0, 3.0], [2.0, 8.0]],)),
    "layer_norm_of_equal_elements": (lambda x: F.layer_norm(x, (3,)), ([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]],)),
}

FUNCTIONS: Mapping[str, tuple[_Function, tuple[_Values, ...]]] = {
    **{name: (function, (_AROUND,)) for name, function in _POINTWISE.items()},
    **_OTHERS,
}
"""Functions, by name, each with the values of its inputs."""


def check_gradients(subject: Subject, name: str) -> None:
    """Compare the result and the gradients of ``FUNCTIONS[name]`` in float32 with those on the CPU.

    Raises:
        AssertionError: If a result or gradient is not on the device, if an element differs from the CPU's element by more than 1e-6 plus
            1e-5 times the absolute value of the CPU's element, or if an element is NaN or infinite only on the device or only on the CPU.
        NotSupported: If the device lacks a dtype that the function needs.
    """
    function, values = FUNCTIONS[name]

    def run(device: torch.device) -> list[torch.Tensor]:
        inputs = [torch.tensor(one, dtype=torch.float32).to(device).requires_grad_() for one in values]
        output = function(*inputs)
        weights = torch.linspace(0.5, 2.0, output.numel()).view(output.shape).to(device)
        gradients = torch.autograd.grad([output], inputs, [weights], allow_unused=True, materialize_grads=True)
        found = [output.detach(), *gradients]
        assert all(one.device == device for one in found)
        return [one.cpu() for one in found]

    if name == "max_of_all":
        subject.needs("int64")  # torch counts the equal elements in a 0-d int64 tensor, which require_dtypes ignores
    require_dtypes(subject, lambda: run(torch.device("cpu")))
    for kind, mine, theirs in zip(("result", *["gradient"] * len(values)), run(subject.device), run(torch.device("cpu")), strict=True):
        is_close = torch.isclose(mine, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert bool(is_close.all()), f"the {kind} of {name} for {values} is {mine.tolist()}, not {theirs.tolist()}"
