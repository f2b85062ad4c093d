"""Indexing functions to be called in deterministic mode, in which many devices use different kernels. The results do not depend on the
order in which elements are written. All numbers are small integers, so that sums are exact in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Call = Callable[[torch.Tensor], torch.Tensor]

_KEYS: dict[str, Callable[[torch.device], Any]] = {
    "one index": lambda device: torch.tensor([3, 0, 2], device=device),
    "negative indices": lambda device: torch.tensor([-1, 1, -4], device=device),
    "two indices": lambda device: (torch.tensor([[4], [1]], device=device), torch.tensor([2, 0, 1], device=device)),
    "an index after a slice": lambda device: (slice(None), torch.tensor([2, 0], device=device)),
    "a slice between indices": lambda device: (torch.tensor([1, 4], device=device), slice(1, 4), torch.tensor([0, 3], device=device)),
    "a mask": lambda device: torch.tensor([True, False, True, True, False], device=device),
    "one row": lambda device: torch.tensor([3], device=device),
    "one element": lambda device: tuple(torch.tensor([place], device=device) for place in (3, 1, 4)),
    "one column": lambda device: (slice(None), torch.tensor([2], device=device)),
    "one 0-d index": lambda device: torch.tensor(2, device=device),
    "a list": lambda device: [4, 0],
    "a list of one": lambda device: [3],
    "an index on the CPU": lambda device: torch.tensor([3, 0], device="cpu"),
    "a mask of one row": lambda device: torch.tensor([False, False, True, False, False], device=device),
    "a mask of every row": lambda device: torch.ones(5, device=device) > 0,
    "no indices": lambda device: torch.tensor([], dtype=torch.int64, device=device),
    "a mask without True": lambda device: torch.ones(5, device=device) < 0,
}
"""Indices into a tensor of shape (5, 4, 6). No index names an element twice."""
_SINGLE = ("no indices", "a mask without True", "one element", "one 0-d index")
"""Indices that do not select rows and columns. Only single values, and values for all selected elements, are assigned to such a
selection."""

_OTHERS: dict[str, Call] = {
    "one value at repeated indices": lambda x: x.index_put((_repeated(x),), x.new_tensor(7)),
    "one value added at repeated indices": lambda x: x.index_put((_repeated(x),), x.new_tensor(7), accumulate=True),
    "a row added at repeated indices": lambda x: x.index_put((_repeated(x),), x[0, 0], accumulate=True),
    "index_add": lambda x: x.index_add(0, _repeated(x), x[:4], alpha=2),
    "index_add of columns": lambda x: x.index_add(1, _repeated(x)[:3], x[:, 1:]),
    "index_copy": lambda x: x.index_copy(0, _distinct(x), x[:3]),
    "index_fill": lambda x: x.index_fill(1, _distinct(x), 9),
    "scatter": lambda x: x.scatter(0, _distinct(x).view(3, 1, 1).expand(3, 4, 6), x[2:]),
    "scatter of one value": lambda x: x.scatter(0, _repeated(x).view(4, 1, 1).expand(4, 4, 6), 9),
    "scatter_add": lambda x: x.scatter_add(0, _repeated(x).view(4, 1, 1).expand(4, 4, 6), x[1:]),
    "scatter_reduce": lambda x: x.scatter_reduce(0, _repeated(x).view(4, 1, 1).expand(4, 4, 6), x[1:], "sum", include_self=False),
    "a row at 1025 indices": lambda x: x.repeat(300, 1, 1).index_put((torch.arange(1025, device=x.device) * 7 % 1500,), x[1, 2]),
    "put": lambda x: x.put(_distinct(x), x[0, 0, :3]),
    "put of sums": lambda x: x.put(_repeated(x), x[0, 0, :4], accumulate=True),
    "masked_scatter": lambda x: x.masked_scatter(x % 2 == 0, x.flip(0)),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.tensor([2, 0, 1, 3], device=x.device), dim=1),
    "gather": lambda x: x.gather(0, _repeated(x).view(4, 1, 1).expand(4, 4, 6)),
    "cumsum": lambda x: x.cumsum(1),
}


def _distinct(like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([3, 0, 2], device=like.device)


def _repeated(like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([2, 0, 2, 3], device=like.device)


def _assignments() -> Iterator[tuple[str, Call]]:
    """Yield assignments to the elements that each key in ``_KEYS`` selects. The assigned tensor has one value for each of these elements,
    or is broadcast."""

    def values(x: torch.Tensor, key: Any, kind: str) -> torch.Tensor:
        selected = -x[key] - 1
        given: dict[str, Call] = {
            "one value": lambda selected: x.new_tensor(8),
            "one value in a list": lambda selected: x.new_tensor([8]),
            "a row": lambda selected: selected[:1],
            "a column": lambda selected: selected[..., :1],
            "fewer dimensions": lambda selected: selected[0],
            "all values": lambda selected: selected,
        }
        return given[kind](selected)

    def assign(x: torch.Tensor, make: Callable[[torch.device], Any], kind: str) -> torch.Tensor:
        key, there = make(x.device), x.clone()
        there[key] = values(x, key, kind)
        return there

    for name, make in _KEYS.items():
        for kind in ("one value", "one value in a list", "a row", "a column", "fewer dimensions", "all values"):
            if kind in ("one value", "one value in a list", "all values") or name not in _SINGLE:
                yield f"assignment of {kind} to {name}", lambda x, make=make, kind=kind: assign(x, make, kind)


def _results(call: Call, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the result of a call and, if ``x`` is a floating-point tensor, the gradient with respect to ``x`` of a weighted sum of the
    result's elements."""
    result = call(x.requires_grad_(x.is_floating_point()))
    if not x.requires_grad:
        return [result]
    weights = (torch.arange(result.numel()) % 7 + 1).view(result.shape).to(result)
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), x)]


def check_deterministic_calls(subject: Subject) -> None:
    """Compare results and gradients on the device, in deterministic mode, with those on the CPU, where this mode is off.

    A device may raise a RuntimeError that says that an operator is not deterministic. Differences are recorded in the subject.
    """
    for dtype in ("float32", "int64"):
        here = torch.arange(120, dtype=getattr(torch, dtype)).view(5, 4, 6)
        for name, call in (*_assignments(), *_OTHERS.items()):
            with subject.sample(f"{name}, {dtype}", {"name": name, "dtype": dtype}):
                torch.use_deterministic_algorithms(False)
                expected = _results(call, here.clone())
                torch.use_deterministic_algorithms(True)
                try:
                    found = _results(call, here.to(subject.device, copy=True))
                except RuntimeError as error:
                    if "determinis" not in str(error):
                        raise
                    continue
                for what, mine, theirs in zip(("result", "gradient"), found, expected, strict=False):
                    subject.assert_on_device(mine)
                    form, right = (mine.dtype, tuple(mine.shape)), (theirs.dtype, tuple(theirs.shape))
                    assert form == right, f"the {what} has the dtype and shape {form}, not {right}"
                    wrong = int((mine.cpu() != theirs).sum())
                    assert not wrong, f"{wrong} of {theirs.numel()} elements of the {what} are wrong"
