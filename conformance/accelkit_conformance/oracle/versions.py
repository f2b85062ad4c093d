"""Checks of the version counter of a tensor. Autograd uses it to notice that a saved tensor was changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Call = Callable[[torch.Tensor], Any]

_WRITES: dict[str, _Call] = {
    "add_": lambda x: x.add_(1),
    "mul_ by a tensor": lambda x: x.mul_(x.detach() + 2),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(2),
    "fill_ of a tensor": lambda x: x.fill_(torch.tensor(2.0)),
    "normal_": lambda x: x.normal_(),
    "uniform_": lambda x: x.uniform_(),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "random_": lambda x: x.random_(5),
    "exponential_": lambda x: x.exponential_(),
    "copy_ from the host": lambda x: x.copy_(torch.ones(3, 4)),
    "copy_ from the host, not blocking": lambda x: x.copy_(torch.ones(3, 4), non_blocking=True),
    "copy_ on the device": lambda x: x.copy_(torch.ones(3, 4, device=x.device)),
    "copy_ of another dtype": lambda x: x.copy_(torch.ones(3, 4, dtype=torch.int32, device=x.device)),
    "assignment to an element": lambda x: x.__setitem__((1, 2), 5),
    "assignment of a row on the host": lambda x: x.__setitem__(1, torch.arange(4.0)),
    "assignment to chosen rows": lambda x: x.__setitem__(torch.tensor([0, 2], device=x.device), 7),
    "assignment to masked elements": lambda x: x.__setitem__(x.detach() > 1, 7),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0, 2], device=x.device), torch.ones(2, 4, device=x.device)),
    "scatter_": lambda x: x.scatter_(1, torch.zeros(3, 1, dtype=torch.int64, device=x.device), 3.0),
    "masked_fill_": lambda x: x.masked_fill_(x.detach() > 1, 3),
    "clamp_": lambda x: x.clamp_(0, 1),
    "relu_": lambda x: x.relu_(),
    "addmm_": lambda x: x.addmm_(torch.ones(3, 2, device=x.device), torch.ones(2, 4, device=x.device)),
    "add_ to a view": lambda x: x.view(12)[3:].add_(1),
    "mul_ of a transposed view": lambda x: x.t().mul_(2),
    "add with out=": lambda x: torch.add(torch.ones(3, 4, device=x.device), 1, out=x),
    "mm with out=": lambda x: torch.mm(torch.ones(3, 2, device=x.device), torch.ones(2, 4, device=x.device), out=x),
    "dropout in place": lambda x: torch.nn.functional.dropout(x, 0.5, inplace=True),
    "kaiming_uniform_": torch.nn.init.kaiming_uniform_,
}
"""Calls that write to a tensor of shape (3, 4), by name."""
_READS: dict[str, _Call] = {
    "add": lambda x: x + 1,
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x[0, 0].item(),
    "to": lambda x: x.to(torch.int32),
    "clone": lambda x: x.clone(),
    "making a view": lambda x: x.view(12)[2:].t(),
    "contiguous": lambda x: x.t().contiguous(),
    "sum": lambda x: x.sum(0),
    "printing": repr,
    "copy_ to another tensor": lambda x: torch.zeros(3, 4, device=x.device).copy_(x),
    "rand_like": torch.rand_like,
    "detach": lambda x: x.detach(),
}
"""Calls that do not write to their argument, a tensor of shape (3, 4), by name."""


def check_versions(subject: Subject) -> None:
    """Check that writing to a tensor increases its version counter, and that reading the tensor does not.

    Also check that a backward pass raises an error if a call has written to a tensor that was saved for the pass. Failures are recorded in
    the subject.
    """
    for name, write in _WRITES.items():
        if lacking_dtypes(subject, lambda write=write: write(torch.ones(3, 4))):  # type: ignore[misc]
            continue
        with subject.sample(name, {"name": name}):
            leaf = torch.ones(3, 4, device=subject.device, requires_grad=True)
            saved = leaf * 2
            result = (saved * saved).sum()
            with torch.no_grad():
                before = saved._version
                write(saved)
                after = saved._version
            assert after > before, f"{name} did not increase the version of the tensor"
            with raises(subject, RuntimeError, about="modified by an inplace operation", doing=f"a backward pass after {name}"):
                result.backward()  # type: ignore[no-untyped-call]
    for name, read in _READS.items():
        with subject.sample(f"{name}, which writes nothing", {"name": name}):
            x = torch.ones(3, 4, device=subject.device)
            read(x)
            assert x._version == 0, f"{name} increased the version of the tensor, although it writes nothing"
