"""Calls in float64 with Python numbers that float32 cannot represent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.compared_calls import compare_call

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_NUMBER = 0.1 + 2**-40
NUMBERS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: (x + _NUMBER, _NUMBER + x, x.clone().add_(_NUMBER)),
    "sub": lambda x: (x - _NUMBER, _NUMBER - x, torch.rsub(x, _NUMBER)),
    "mul": lambda x: (x * _NUMBER, x.clone().mul_(_NUMBER)),
    "div": lambda x: (x / _NUMBER, _NUMBER / x, x.clone().div_(_NUMBER)),
    "floor_divide": lambda x: (x // _NUMBER, x % _NUMBER),
    "pow": lambda x: (x**_NUMBER, _NUMBER**x),
    "alpha": lambda x: (torch.add(x, x, alpha=_NUMBER), torch.sub(x, x, alpha=_NUMBER), x.clone().add_(x, alpha=_NUMBER)),
    "addcmul": lambda x: (torch.addcmul(x, x, x, value=_NUMBER), torch.addcdiv(x, x, x, value=_NUMBER)),
    "addmm": lambda x: (torch.addmm(x, x, x.t(), beta=_NUMBER), torch.addmm(x, x, x.t(), alpha=_NUMBER)),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None], beta=_NUMBER, alpha=1 / 3),
    "addr": lambda x: torch.addr(x, x[0], x[1], beta=_NUMBER, alpha=1 / 3),
    "lerp": lambda x: torch.lerp(x, 2 * x, _NUMBER),
    "clamp": lambda x: (x.clamp(min=_NUMBER), x.clamp(max=_NUMBER)),
    "compare": lambda x: tuple(
        function(x * 0 + _NUMBER, number)
        for function in (torch.eq, torch.lt, torch.ge, torch.ne) for number in (_NUMBER, _NUMBER + 2**-45, _NUMBER - 2**-45)
    ),
    "fill": lambda x: (torch.full_like(x, _NUMBER), x.clone().fill_(_NUMBER), x.new_full((3,), _NUMBER)),
    "masked_fill": lambda x: (x.masked_fill(x > 1, _NUMBER), torch.where(x > 1, x, _NUMBER), torch.where(x > 1, _NUMBER, x)),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([1]).to(x.device), _NUMBER),
    "scatter": lambda x: x.scatter(0, torch.zeros(1, 3, dtype=torch.int64).to(x.device), _NUMBER),
    "assign": lambda x: _assigned(x.clone()),
    "pad": lambda x: F.pad(x, (1, 2), value=_NUMBER),
    "activations": lambda x: (
        F.leaky_relu(x - 1, _NUMBER), F.threshold(x, 1, _NUMBER), F.elu(x - 1, _NUMBER), F.softplus(x, _NUMBER), F.hardtanh(x, 0, _NUMBER),
        F.celu(x - 1, _NUMBER), F.hardshrink(x, _NUMBER), F.softshrink(x, _NUMBER),
    ),
    "reductions": lambda x: (x.norm(p=1 + _NUMBER), torch.renorm(x, 2, 0, _NUMBER), x.var(0, correction=_NUMBER), x.logit(_NUMBER)),
    "foreach": lambda x: (*torch._foreach_add([x], _NUMBER), *torch._foreach_mul([x], [_NUMBER]), *torch._foreach_pow([x], _NUMBER)),
    "layer_norm": lambda x: (F.layer_norm(x, (3,), eps=_NUMBER), F.normalize(x, eps=_NUMBER), F.cosine_similarity(x, x, eps=_NUMBER)),
    "factories": lambda x: (
        torch.full((3,), _NUMBER, dtype=x.dtype, device=x.device), torch.tensor(_NUMBER, dtype=x.dtype, device=x.device),
        torch.arange(_NUMBER, 1, 1 / 3, dtype=x.dtype, device=x.device), torch.linspace(_NUMBER, 1, 5, dtype=x.dtype, device=x.device),
    ),
}  # fmt: skip
"""Functions by name. Each takes a float64 matrix and makes calls with Python numbers that float32 cannot represent."""


def _assigned(x: torch.Tensor) -> torch.Tensor:
    x[1] = _NUMBER
    x[x > 1] = 1 / 3
    return x


def check_precise_numbers(subject: Subject, name: str) -> None:
    """Compare the results of ``NUMBERS[name]`` for a float64 matrix on the device with the results for the same matrix on the CPU.

    Raises:
        AssertionError: If a result differs.
    """
    compare_call(subject, NUMBERS[name], (torch.linspace(0.3, 2.7, 9, dtype=torch.float64).view(3, 3),))
