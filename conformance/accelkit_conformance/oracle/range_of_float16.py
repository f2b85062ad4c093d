"""Calls in float16 whose results are in the range of float16, although numbers or intermediate results are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.compared_calls import compare_call

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_NUMBERS = (65536.0, 1e6, 524288.0)


def _scores(ones: torch.Tensor) -> torch.Tensor:
    """Return queries or keys whose products, before they are multiplied by the scale, are beyond the range of float16."""
    return (ones * 256).expand(1, 1, 4, 64)


CALLS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mul": lambda x, _: [(x * 1e-6 * number, number * (x * 1e-6), (x * 1e-6).mul_(number)) for number in _NUMBERS],
    "mul_small": lambda x, _: (x * 1e-7, x.clone().mul_(1e-7)),
    "div": lambda x, _: [(x / number, x.clone().div_(number)) for number in _NUMBERS],
    "alpha": lambda x, y: (torch.sub(x, x, alpha=1.5), torch.add(-x, x, alpha=1.25), x.clone().add_(x, alpha=-1.75)),
    "addcmul": lambda x, y: (torch.addcmul(x, x, -y, value=2), torch.addcmul(x, x, -x, value=1e-5), (x + 0).addcmul_(x, -y, value=2)),
    "addcdiv": lambda x, y: (torch.addcdiv(-x, x, y, value=2), torch.addcdiv(-x, x, y / 2)),
    "lerp": lambda x, y: (torch.lerp(-x, x, 0.25), torch.lerp(x, -x, y * 0.75)),
    "hypot": lambda x, y: (torch.hypot(x / 2, x / 2), torch.hypot(x, y)),
    "logaddexp": lambda x, y: (torch.logaddexp(x / 2, x / 2), torch.logaddexp(x, y), F.softplus(x / 2), torch.logsumexp(x, 0)),
    "mean": lambda x, _: (x.mean(), x.view(4, -1).mean(1), F.mse_loss(x / 300, -x * 0, reduction="mean")),
    "norm": lambda x, _: (torch.linalg.vector_norm(x / 40), (x / 40).view(4, -1).norm(dim=1), (x / 9).norm(3)),
    "std": lambda x, y: (torch.cat([x, -x]).std() / 2, torch.cat([x / 2, y]).std()),
    "layer_norm": lambda x, y: (F.layer_norm(torch.cat([x, y]), (2 * len(x),)), F.rms_norm(x, (len(x),))),
    "batch_norm": lambda x, y: F.batch_norm(torch.stack([x, -x]), None, None, training=True),
    "group_norms": lambda x, y: [f(torch.cat([x, -x]).view(1, 2, 64)) for f in (lambda z: F.group_norm(z, 1), F.instance_norm)],
    "products": lambda x, y: (
        torch.addmm(x[:8], x.view(8, 8), x.view(8, 8), beta=0, alpha=2**-20),
        torch.baddbmm(x[:8], x.view(1, 8, 8), x.view(1, 8, 8), beta=0, alpha=2**-20),
        torch.addmv(x[:8], x.view(8, 8), x[:8], beta=0, alpha=2**-20),
    ),
    "attention": lambda x, y: F.scaled_dot_product_attention(_scores(y), _scores(y), (x / 9).view(1, 1, 4, 16)),
    "activations": lambda x, _: [
        f(one) for one in (x, -x) for f in (F.silu, F.gelu, lambda z: F.gelu(z, approximate="tanh"), F.mish, F.elu)
    ],
}
"""The calls by name. Each takes two float16 vectors. The elements of the first are about 60,000, and those of the second are 1."""


def check_range_of_float16(subject: Subject, name: str) -> None:
    """Compare the results of the call ``CALLS[name]`` on the device with those on the CPU.

    Raises:
        AssertionError: If a result differs.
    """
    x = 60000 - 32 * torch.arange(64.0)
    compare_call(subject, CALLS[name], (x.half(), torch.ones(64, dtype=torch.float16)))
