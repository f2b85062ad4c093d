"""Checks of the second derivatives, forward-mode derivatives and vectorised results of common functions against those on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit.runtime.comparison.cotangents import cotangents
from accelkit.runtime.comparison.tolerance import relative_error
from accelkit_conformance.oracle.differentiable import COMMON, SEVERAL_INPUTS, Function, random_inputs
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.sample_transfer import to_device, to_double
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Shapes = tuple[tuple[int, ...], ...]
_PAIR: Shapes = ((3, 4), (3, 4))
_IMAGE: Shapes = ((2, 3, 5, 6),)
_FUSED = ("lstm", "lstm_cell", "gru", "gru_cell")
"""Functions without forward-mode derivatives: torch 2.13 has none for the fused cells that it uses on most devices (pytorch#174355)."""
_STAGES = 8
"""The number of operators whose errors add up in a derivative. It is chosen for second derivatives, which need the most operators."""


def _classes(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([1, 0, 3]).to(x.device)


def _positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + 4 * torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)


def _without_cudnn(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the function without cuDNN and MIOpen, whose recurrent modules have only first derivatives."""

    def call(*given: torch.Tensor) -> torch.Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return function(*given)

    return call


def _recurrent(num_states: int, num_gates: int) -> Shapes:
    """Return the shapes of the inputs of a recurrent layer: three steps of two sequences, the states, the weights and the biases."""
    rows = 4 * num_gates
    return ((3, 2, 3), *((1, 2, 4),) * num_states, (rows, 3), (rows, 4), (rows,), (rows,))


FUNCTIONS: Mapping[str, tuple[Function, Shapes]] = {
    **{name: (function, ((4, 2, 8, 8), (8, 8))) for name, function in COMMON.items()},
    **SEVERAL_INPUTS,
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), ((3, 4),)),
    "silu": (F.silu, ((3, 4),)),
    "elu": (lambda x: F.elu(x, 1.5), ((3, 4),)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2) * x, ((3, 4),)),
    "softplus": (lambda x: F.softplus(x, beta=2.0), ((3, 4),)),
    "hardswish": (lambda x: F.hardswish(x * 2), ((3, 4),)),
    "mish": (F.mish, ((3, 4),)),
    "logsigmoid": (F.logsigmoid, ((3, 4),)),
    "glu": (F.glu, ((3, 4),)),
    "div": (lambda x, y: x / (y.square() + 0.5), _PAIR),
    "pow": (lambda x, y: (x.square() + 0.5).pow(y), _PAIR),
    "sqrt": (lambda x, y: (x.square() + y.square() + 0.1).sqrt().rsqrt(), _PAIR),
    "exp": (lambda x, y: x.exp().log1p() * y.expm1(), _PAIR),
    "sin": (lambda x, y: x.sin() * y.cos() + torch.atan2(x, y), _PAIR),
    "where": (lambda x, y: torch.where(x > y, x * y, y.square()), _PAIR),
    "clamp": (lambda x, y: x.clamp(-0.5, 0.5) * torch.maximum(x, y), _PAIR),
    "prod": (lambda x: x.prod(1), ((3, 4),)),
    "cumprod": (lambda x: x.cumprod(1), ((3, 4),)),
    "cumsum": (lambda x: x.cumsum(0) * x, ((3, 4),)),
    "logsumexp": (lambda x: x.logsumexp(1), ((3, 4),)),
    "norm": (lambda x: torch.linalg.vector_norm(x, 3.0, dim=1), ((3, 4),)),
    "var": (lambda x: x.var(1) + x.std(1, correction=0), ((3, 4),)),
    "mean": (lambda x: x.mean(0) * x.amax(0), ((3, 4),)),
    "cross_entropy": (lambda x: F.cross_entropy(x, _classes(x), label_smoothing=0.1), ((3, 4),)),
    "mse": (F.mse_loss, _PAIR),
    "bce": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), _PAIR),
    "kl": (lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), _PAIR),
    "smooth_l1": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.7), _PAIR),
    "gather": (lambda x: x.gather(1, _classes(x).view(3, 1)) * x, ((3, 4),)),
    "index": (lambda x: x[:, _classes(x)].square(), ((3, 4),)),
    "index_add": (lambda x, y: x.square().index_add(0, torch.tensor([2, 0, 2]).to(x.device), y * y), _PAIR),
    "embedding": (lambda x: F.embedding(_classes(x), x).square(), ((4, 3),)),
    "cat": (lambda x, y: torch.cat([x * y, y.exp()], 1), _PAIR),
    "pad": (lambda x: F.pad(x, (1, 2), mode="reflect").square(), ((3, 4),)),
    "avg_pool": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)).square(), _IMAGE),
    "max_pool_values": (lambda x: F.adaptive_max_pool2d(x, (3, 2)).square(), _IMAGE),
    "conv3d": (lambda x, w: F.conv3d(x[None], w).square(), ((2, 3, 4, 3), (3, 2, 2, 2, 2))),
    "unfold": (lambda x: F.unfold(x, 2).square(), _IMAGE),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2).square(), ((1, 4, 2, 3),)),
    "bicubic": (lambda x: F.interpolate(x, size=(7, 4), mode="bicubic").square(), _IMAGE),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y).square(), _PAIR),
    "inverse": (lambda x: torch.linalg.inv(_positive(x)), ((3, 4),)),
    "cholesky": (lambda x: torch.linalg.cholesky(_positive(x)), ((3, 4),)),
    "logdet": (lambda x: torch.logdet(_positive(x)), ((3, 4),)),
    "flip": (lambda x: (x.flip(0) * x.roll(1, 1)).tril(), ((3, 4),)),
    "lstm": (_without_cudnn(lambda x, h, c, *w: torch.lstm(x, (h, c), w, True, 1, 0.0, False, False, False)[0]), _recurrent(2, 4)),
    "gru": (_without_cudnn(lambda x, h, *w: torch.gru(x, h, w, True, 1, 0.0, False, False, False)[0]), _recurrent(1, 3)),
    "rnn": (_without_cudnn(lambda x, h, *w: torch.rnn_tanh(x, h, w, True, 1, 0.0, False, False, False)[0]), _recurrent(1, 1)),
    "lstm_cell": (lambda x, h, c, *w: torch.lstm_cell(x[0], (h[0], c[0]), *w)[0], _recurrent(2, 4)),
    "gru_cell": (lambda x, h, *w: torch.gru_cell(x[0], h[0], *w), _recurrent(1, 3)),
    "solve": (lambda x, y: torch.linalg.solve(_positive(x), y), ((3, 4), (3, 2))),
    "eigenvalues": (lambda x: torch.linalg.eigvalsh(_positive(x) + torch.arange(3.0, dtype=x.dtype).to(x.device).diag()), ((3, 4),)),
    "complex": (lambda x, y: torch.view_as_real(torch.complex(x, y).square().exp()), _PAIR),
}
"""Differentiable functions, by name, each with the shapes of its inputs."""


def _second(function: Function, name: str, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of a function, and then the gradients of these gradients with respect to the inputs and the output gradient."""
    inputs = [one.requires_grad_() for one in given]
    outputs = function(*inputs)
    gradient = cotangents([outputs], name)[0].requires_grad_()
    first = torch.autograd.grad([outputs], inputs, [gradient], create_graph=True)
    assert all(one.requires_grad for one in first), "a gradient that was computed with create_graph=True does not require a gradient"
    second = torch.autograd.grad(first, [*inputs, gradient], cotangents(list(first), name), allow_unused=True, materialize_grads=True)
    return [one.detach() for one in (*first, *second)]


def _forward_mode(function: Function, name: str, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the result of a function and its derivative in a random direction."""
    return list(torch.func.jvp(function, tuple(given), tuple(cotangents(list(given), name))))


def _vectorized(function: Function, name: str, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Apply ``torch.vmap`` to a function and to its gradient, with three sets of inputs.

    Return the stacked results of the function, and the stacked gradients of a scalar loss with respect to the first input.
    """
    several = [torch.stack([one, one.flip(-1), one * 0.5]) for one in given]
    loss = lambda *inputs: (function(*inputs) * 0.3).sin().sum()  # noqa: E731
    return [torch.vmap(function)(*several), torch.vmap(torch.func.grad(loss))(*several)]


def _partly_vectorized(function: Function, name: str, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the stacked results of ``torch.vmap`` with two sets of inputs.

    The first call stacks all inputs along their last dimension. In each of the other calls, one of the inputs is the same in both sets.
    """
    results = [torch.vmap(function, in_dims=-1)(*(torch.stack([one, one.flip(-1)], -1) for one in given))]
    several = [torch.stack([one, one.flip(-1)]) for one in given]
    for fixed in range(len(given) if len(given) > 1 else 0):
        inputs = [one if number == fixed else stacked for number, (one, stacked) in enumerate(zip(given, several, strict=True))]
        places = tuple(None if number == fixed else 0 for number in range(len(given)))
        results.append(torch.vmap(function, in_dims=places)(*inputs))
    return results


def _jacobian(function: Function, name: str, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return Jacobians of the first five elements of a function's result, and the product of a loss's Hessian with a random direction.

    The product is left out for the functions in ``_FUSED``.
    """
    numbers = tuple(range(len(given)))
    jacobians = torch.func.jacrev(lambda *inputs: function(*inputs).flatten()[:5], argnums=numbers)(*given)
    if name in _FUSED:
        return list(jacobians)
    loss = lambda *inputs: (function(*inputs) * 0.3).sin().sum()  # noqa: E731
    _, product = torch.func.jvp(torch.func.grad(loss, argnums=numbers), tuple(given), tuple(cotangents(list(given), name)))
    return [*jacobians, *product]


def _vectorized_tangents(function: Function, name: str, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the derivatives of a function in three directions, which ``torch.vmap`` stacks, and the derivative of a loss with respect to
    the first input, as ``torch.func.jacfwd`` computes it."""
    inputs = tuple(given)
    directions = [torch.stack([one, one.flip(-1), one * 0.5]) for one in cotangents(list(given), name)]
    tangents = torch.vmap(lambda *along: torch.func.jvp(function, inputs, along)[1])(*directions)
    loss = lambda *inputs: (function(*inputs) * 0.3).sin().sum()  # noqa: E731
    return [tangents, torch.func.jacfwd(loss)(*given)]


KINDS: Mapping[str, Callable[[Function, str, Sequence[torch.Tensor]], list[torch.Tensor]]] = {
    "second": _second,
    "forward_mode": _forward_mode,
    "vectorized": _vectorized,
    "partly_vectorized": _partly_vectorized,
    "jacobian": _jacobian,
    "vectorized_tangents": _vectorized_tangents,
}


def has_derivative(name: str, kind: str) -> bool:
    """Return whether torch has the derivative on all devices that support ``FUNCTIONS[name]``."""
    return kind not in ("forward_mode", "vectorized_tangents") or name not in _FUSED


def check_derivatives(subject: Subject, name: str, kind: str) -> None:
    """Compare a function's derivatives on the device with those in double precision on the CPU.

    If the CPU cannot compute the derivatives, this function does nothing.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function in ``FUNCTIONS``.
        kind: The kind of derivative, a key of ``KINDS``.
    """
    function, shapes = FUNCTIONS[name]
    derive: Callable[[Sequence[Any]], list[torch.Tensor]] = functools.partial(KINDS[kind], function, name)
    inputs, cpu = random_inputs(*shapes), torch.device("cpu")
    try:
        truth, reference = derive(to_double(inputs)), derive(to_device(inputs, cpu))
    except (NotImplementedError, RuntimeError):  # some functions of torch have no such derivative
        return
    subject.needs(*lacking_dtypes(subject, lambda: derive(to_device(inputs, cpu))))
    found = derive(to_device(inputs, subject.device))
    others = max(map(relative_error, reference, truth))
    for mine, theirs, true in zip(found, reference, truth, strict=True):
        check_result(mine, theirs, true, subject.device, cancels=True, others=others, num_stages=_STAGES)
