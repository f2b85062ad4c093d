"""In-place calls whose results take part in a backward pass, and calls that must increase the version counter of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.programs import integers

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Call = Callable[[torch.Tensor, torch.Tensor], Any]


def _set(x: torch.Tensor, index: Any, value: Any) -> None:
    x[index] = value


def _mask(like: torch.Tensor) -> torch.Tensor:
    return torch.arange(like.numel(), device=like.device).view(like.shape) % 3 == 0


DIFFERENTIATED: Mapping[str, Call] = {
    "add_": lambda x, y: x.add_(y, alpha=2),
    "mul__of_a_row": lambda x, y: x[1].mul_(y[0]),
    "add__to_a_column": lambda x, y: x[:, 1].add_(y[:, 2]),
    "copy__to_a_slice": lambda x, y: x[:, 1:3].copy_(y[:, :2]),
    "copy__to_a_transposed_view": lambda x, y: x.t().copy_(y.t()),
    "fill__of_a_diagonal": lambda x, y: x.diagonal().fill_(3.0),
    "fill__with_a_tensor": lambda x, y: x[0].fill_(y[0, 0]),
    "zero__of_every_second_element": lambda x, y: x.view(-1)[::2].zero_(),
    "sigmoid__of_a_view_of_a_view": lambda x, y: x[1:].t()[1].sigmoid_(),
    "exp__of_an_unsqueezed_view": lambda x, y: x.unsqueeze(0).exp_(),
    "tanh_": lambda x, y: x.tanh_(),
    "relu_": lambda x, y: x.relu_(),
    "leaky_relu_": lambda x, y: F.leaky_relu_(x, 0.2),
    "elu_": lambda x, y: F.elu_(x),
    "hardtanh_": lambda x, y: F.hardtanh_(x, -0.5, 0.5),
    "silu": lambda x, y: F.silu(x, inplace=True),
    "clamp_": lambda x, y: x.clamp_(-0.5, 0.5),
    "div_": lambda x, y: x.div_(y.exp()),
    "pow_": lambda x, y: x.pow_(2),
    "sub__of_a_broadcast_row": lambda x, y: x.sub_(y[0]),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.5),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y.exp(), value=0.5),
    "lerp_": lambda x, y: x.lerp_(y, 0.3),
    "addmm_": lambda x, y: x.addmm_(y, y.t(), alpha=0.5),
    "masked_fill_": lambda x, y: x.masked_fill_(_mask(x), 2.0),
    "masked_scatter_": lambda x, y: x.masked_scatter_(_mask(x), y),
    "index_put_": lambda x, y: x.index_put_((integers(x, 0, 2, 0),), y[:3], accumulate=True),
    "index_add_": lambda x, y: x.index_add_(0, integers(x, 0, 2, 0), y[:3], alpha=0.5),
    "index_copy_": lambda x, y: x.index_copy_(1, integers(x, 3, 1), y[:, :2]),
    "index_fill_": lambda x, y: x.index_fill_(1, integers(x, 3, 1), 0.5),
    "scatter_": lambda x, y: x.scatter_(0, integers(x, 2, 0, 1, 2).view(1, 4), y[:1]),
    "scatter_add__to_a_view": lambda x, y: x[:2].scatter_add_(0, integers(x, 1, 1, 0, 1).view(1, 4), y[:1]),
    "an_assigned_slice": lambda x, y: _set(x, (slice(1), slice(1, None)), y[:1, 1:]),
    "an_assigned_element": lambda x, y: _set(x, (1, 2), y[0, 0]),
    "an_assigned_mask": lambda x, y: _set(x, _mask(x), y[0, 0]),
    "assigned_rows": lambda x, y: _set(x, integers(x, 2, 0), y[:2]),
    "an_assigned_number": lambda x, y: _set(x, (Ellipsis, 1), 0.0),
    "two_views": lambda x, y: (x[0].mul_(y[1]), x[:, 0].add_(y[:, 1])),
    "a_half_of_a_split": lambda x, y: x.narrow(0, 0, 2).mul_(x.narrow(0, 2, 2).clone()),
    "t_": lambda x, y: x.t_().mul_(y.t()),
    "squeeze_": lambda x, y: x.unsqueeze_(0).add_(y).squeeze_(0),
    "a_detached_view": lambda x, y: x[2].copy_(y.detach()[1]),
}
"""Calls that change a tensor of shape (4, 4) in place. The other argument has the same shape."""


def run(call: Call, device: torch.device) -> Any:
    """Change an intermediate result in place. Then run two backward passes, one through the result and one through a view of it.

    Returns:
        A tuple of six values: the changed tensor, a view of it that was created before the change, a list of the gradients of the two leaf
        tensors, and three booleans. The booleans say whether the version counter of the tensor has increased, whether the view has the same
        version as the tensor, and whether the tensor is still the base of the view.
    """
    leaves = [torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)).to(device).requires_grad_() for seed in (1, 2)]
    x = leaves[0] * 1.5
    view = x[1:3]
    before = x._version
    call(x, leaves[1] * 0.5)
    weights = torch.linspace(-1, 2, 16).view(4, 4).to(device)
    (x * weights).sum().backward(retain_graph=True)
    (view.square() * weights[:2, : view.shape[1]]).sum().backward()
    return x, view, [leaf.grad for leaf in leaves], x._version > before, x._version == view._version, view._base is x


VERSIONED: Mapping[str, Call] = {
    "copy_": lambda x, y: x.copy_(y),
    "copy__from_the_CPU": lambda x, y: x.copy_(y.cpu()),
    "fill_": lambda x, y: x.fill_(2.0),
    "zero_": lambda x, y: x.zero_(),
    "normal_": lambda x, y: x.normal_(),
    "uniform_": lambda x, y: x.uniform_(),
    "bernoulli_": lambda x, y: x.bernoulli_(0.5),
    "random_": lambda x, y: x.random_(5),
    "exponential_": lambda x, y: x.exponential_(),
    "out_of_add": lambda x, y: torch.add(y, y, out=x),
    "out_of_mm": lambda x, y: torch.mm(y, y, out=x),
    "out_of_cat": lambda x, y: torch.cat([y[:2], y[2:]], out=x),
    "out_of_sort": lambda x, y: torch.sort(y, out=(x, torch.empty_like(y, dtype=torch.int64))),
    "a_view": lambda x, y: x[1].add_(1),
    "a_view_of_a_view": lambda x, y: x.t()[1:].view(3, 2, 2)[0].mul_(2),
    "a_detached_tensor": lambda x, y: x.detach().add_(1),
    "an_assigned_element": lambda x, y: _set(x, (0, 0), 1.0),
    "dropout": lambda x, y: F.dropout(x, 0.5, inplace=True),
    "relu": lambda x, y: F.relu(x, inplace=True),
    "embedding_with_max_norm": lambda x, y: F.embedding(integers(x, 0, 1), x, max_norm=0.1),
    "batch_norm": lambda x, y: F.batch_norm(y, x[0], x[1].abs_(), training=True),
    "no_grad": lambda x, y: _without_gradients(x),
    "trunc_normal_": lambda x, y: torch.nn.init.trunc_normal_(x),
    "orthogonal_": lambda x, y: torch.nn.init.orthogonal_(x),
    "clip_grad_norm_": lambda x, y: _clip(x),
}
"""Calls that write to their first argument, a tensor of shape (4, 4). The other argument has the same shape. Foreach operators are
left out: only some of their kernels increase version counters, and under torch's dispatch modes none of them does."""


def _without_gradients(x: torch.Tensor) -> None:
    with torch.no_grad():
        x.add_(1)


def _clip(x: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(torch.zeros_like(x))
    parameter.grad = x
    torch.nn.utils.clip_grad_norm_([parameter], 0.1, foreach=False)


def check_versions(subject: Subject) -> None:
    """Check that the calls in ``VERSIONED`` increase the version counter of a tensor on the device, and that a view of the tensor then has
    the same version.

    A call need not do so on the device if it does not do so on the CPU. Failures are recorded in the subject.
    """
    for name, call in VERSIONED.items():
        with subject.sample(name, {"call": name}):
            wrong = _unversioned(call, subject.device)
            assert not wrong or _unversioned(call, torch.device("cpu")), f"after {name}, {wrong}"


def _unversioned(call: Call, device: torch.device) -> str:
    """Make a call, and return what is wrong with the version counter of its first argument, or an empty string if nothing is wrong."""
    x, y = (torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)).to(device) for seed in (1, 2))
    view = x[1:]
    before = x._version
    call(x, y)
    if x._version <= before:
        return f"the version stays {before}"
    return "" if view._version == x._version else f"a view has the version {view._version}, and its base {x._version}"
