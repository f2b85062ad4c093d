"""Calls that must raise an error because of a value in a tensor: an index out of range, or another value that the operator refuses.

``check_values`` runs this module as a program. The program makes the calls in a new process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name
from packaging.version import Version

from accelkit_conformance import subprocess_checks
from accelkit_conformance.results import NotSupported
from accelkit_conformance.subject import Subject

if TYPE_CHECKING:
    from accelkit import Accelerator

_Call = Callable[[torch.Tensor], object]
_ABORTED = "the process ended"


def _index(x: torch.Tensor, value: int, *, before: int = 1) -> torch.Tensor:
    return torch.tensor([0] * before + [value], device=x.device)


def _values(x: torch.Tensor, *values: float) -> torch.Tensor:
    return torch.tensor(values, device=x.device)


def _uniform(x: torch.Tensor, last: float) -> torch.Tensor:
    """Return 10,000 numbers. All are 0.5 except the last."""
    return torch.cat([torch.full((9_999,), 0.5, device=x.device), _values(x, last)])


def _ones(index: torch.Tensor) -> torch.Tensor:
    return torch.ones(index.shape, device=index.device)


_BEYOND: dict[str, tuple[int, int, Callable[[torch.Tensor, torch.Tensor], object]]] = {
    "x[index]": (4, -5, lambda x, index: x[index]),
    "x[index] = value": (4, -5, lambda x, index: x.__setitem__(index, 1.0)),
    "index_select": (4, -1, lambda x, index: x.index_select(0, index)),
    "gather": (4, -1, lambda x, index: x.gather(0, index)),
    "take": (4, -5, lambda x, index: x.take(index)),
    "embedding": (2, -1, lambda x, index: F.embedding(index, x.view(2, 2))),
    "scatter_": (4, -1, lambda x, index: x.scatter_(0, index, 1.0)),
    "scatter_ of a tensor": (4, -1, lambda x, index: x.scatter_(0, index, _ones(index))),
    "scatter_add_": (4, -1, lambda x, index: x.scatter_add_(0, index, _ones(index))),
    "scatter_reduce_": (4, -1, lambda x, index: x.scatter_reduce_(0, index, _ones(index), "amax")),
    "index_add_": (4, -1, lambda x, index: x.index_add_(0, index, _ones(index))),
    "index_copy_": (4, -1, lambda x, index: x.index_copy_(0, index, _ones(index))),
    "index_fill_": (4, -5, lambda x, index: x.index_fill_(0, index, 1.0)),
    "index_put_, accumulating": (4, -5, lambda x, index: x.index_put_((index,), _ones(index), accumulate=True)),
    "put_": (4, -5, lambda x, index: x.put_(index, _ones(index))),
    "index_reduce_": (4, -1, lambda x, index: x.index_reduce_(0, index, _ones(index), "amax")),
    **{
        f"embedding_bag, {mode}": (
            2,
            -1,
            lambda x, index, mode=mode: F.embedding_bag(index, x.view(2, 2), torch.tensor([0], device=x.device), mode=mode),  # type: ignore[misc]
        )
        for mode in ("sum", "mean", "max")
    },
    "embedding_bag of a matrix of indices": (2, -1, lambda x, index: F.embedding_bag(index.view(1, -1), x.view(2, 2))),
    "nll_loss": (2, -1, lambda x, index: F.nll_loss(x.view(2, 2), index)),
    "nll_loss of images": (2, -1, lambda x, index: F.nll_loss(x.view(1, 2, 1, 2), index.view(1, 1, 2))),
    "nll_loss without reduction": (2, -1, lambda x, index: F.nll_loss(x.view(2, 2), index, reduction="none")),
    "nll_loss of images, without reduction": (
        2,
        -1,
        lambda x, index: F.nll_loss(x.view(1, 2, 1, 2), index.view(1, 1, 2), reduction="none"),
    ),
    "cross_entropy": (2, -1, lambda x, index: F.cross_entropy(x.view(2, 2), index)),
    "one_hot": (3, -1, lambda x, index: F.one_hot(index, 3)),
    "x[:, index]": (2, -3, lambda x, index: x.view(2, 2)[:, index]),
    "gather along columns": (2, -1, lambda x, index: x.view(2, 2).gather(1, index.view(2, 1))),
}
"""Calls with an index beyond an end of a tensor, by name: the smallest index beyond the end, the largest index before the start, and a
function of a tensor of four elements and two indices."""
_OF_A_SLICE = (
    "x[index]", "x[index] = value", "index_select", "gather", "take", "scatter_", "scatter_ of a tensor", "scatter_add_", "scatter_reduce_",
    "index_add_", "index_copy_", "index_fill_", "index_put_, accumulating", "put_", "index_reduce_",
)  # fmt: skip
"""Names in ``_BEYOND`` of functions that take a one-dimensional tensor and any number of indices. They are also called with the first two
elements of a longer tensor, and with 41 valid indices before the one that is out of range."""
INDICES: dict[str, _Call] = {
    **{name: lambda x, call=call, end=end: call(x, _index(x, end)) for name, (end, _, call) in _BEYOND.items()},  # type: ignore[misc]
    **{
        f"{name}, before the start": lambda x, call=call, start=start: call(x, _index(x, start))  # type: ignore[misc]
        for name, (_, start, call) in _BEYOND.items()
        if not name.startswith("embedding_bag")  # CUDA's kernel does not check this
    },
    **{
        f"{name} of a slice": lambda x, call=_BEYOND[name][2]: call(x[:2], _index(x, 3))  # type: ignore[misc]
        for name in _OF_A_SLICE
    },
    **{
        f"{name}, {side} of many": lambda x, call=call, value=value: call(x, torch.cat([_index(x, 1)] * 20 + [_index(x, value)]))  # type: ignore[misc]
        for name, (end, start, call) in _BEYOND.items()
        if name in _OF_A_SLICE
        for side, value in (("the last", end), ("the last, before the start,", start))
        if name != "index_copy_"
    },
    "index_select of 9": lambda x: x.index_select(0, _index(x, 9)),
    "embedding of 9": lambda x: F.embedding(_index(x, 9), x.view(2, 2)),
    "x[-index]": lambda x: x[_index(x, -9)],
    "take of -9": lambda x: x.take(_index(x, -9)),
    "index_copy_ of -9": lambda x: x.index_copy_(0, _index(x, -9), torch.ones(2, device=x.device)),
    "max_unpool2d": lambda x: F.max_unpool2d(x.view(1, 2, 2), _index(x, 99).repeat(2).view(1, 2, 2), 2),
    **{
        f"{name} of 2**32": lambda x, call=_BEYOND[name][2]: call(x, _index(x, 2**32))  # type: ignore[misc]
        for name in ("x[index]", "x[index] = value", "gather", "take", "scatter_", "index_fill_")  # others have 32-bit indices on CUDA
    },
    **{
        f"{name}, one of 5,000": lambda x, call=call: call(x, _index(x, 4, before=4_999))  # type: ignore[misc]
        for name, call in {
            "x[index]": _BEYOND["x[index]"][2],
            "x[index] = value": _BEYOND["x[index] = value"][2],
            "index_select": _BEYOND["index_select"][2],
            "take": _BEYOND["take"][2],
            "embedding": lambda x, index: F.embedding(index, x.view(4, 1)),
            "index_fill_": _BEYOND["index_fill_"][2],
            "gather": lambda x, index: x.view(1, 4).gather(1, index.view(1, -1)),
        }.items()
    },
    "index_fill_ of a long slice": lambda x: x.repeat(16)[:32].index_fill_(0, torch.tensor([40], device=x.device), 7.0),
    "index_fill_ before a slice": lambda x: x.repeat(16)[8:40].index_fill_(0, torch.tensor([-38], device=x.device), 7.0),
    "index_select along columns": lambda x: x.view(2, 2).t().index_select(1, _index(x, 2)),
    "index_add_ along columns": lambda x: x.view(2, 2).index_add_(1, _index(x, 2), torch.ones(2, 2, device=x.device)),
    "scatter_ along columns": lambda x: x.view(2, 2).scatter_(1, _index(x, 2).view(2, 1), 1.0),
    "index_select with int32": lambda x: x.index_select(0, _index(x, 4).to(torch.int32)),
    "embedding with int32": lambda x: F.embedding(_index(x, 2).to(torch.int32), x.view(2, 2)),
    "x[index] of integers": lambda x: x.to(torch.int64)[_index(x, 4)],
    "multi_margin_loss": lambda x: F.multi_margin_loss(x.view(2, 2), _index(x, 2)),
    "nll_loss beside an ignored class": lambda x: F.nll_loss(x.view(2, 2), torch.tensor([-100, 2], device=x.device)),
    "searchsorted with a sorter": lambda x: torch.searchsorted(x, x, sorter=torch.tensor([0, 1, 2, 4], device=x.device)),
    "bincount of -1": lambda x: torch.bincount(_index(x, -1)),
    "repeat_interleave of -1": lambda x: x[:2].repeat_interleave(_index(x, -1)),
}
"""Calls with an index outside a tensor of four elements or, with ``of a slice``, outside its first two elements, by name."""
PIVOTS: dict[str, _Call] = {
    f"{name} with the pivots {pivots}": lambda x, call=call, pivots=pivots: call(  # type: ignore[misc]
        x.view(2, 2), torch.tensor(pivots, dtype=torch.int32, device=x.device)
    )
    for name, call in {
        "linalg.ldl_solve": lambda x, pivots: torch.linalg.ldl_solve(x, pivots, x),
        "linalg.lu_solve": lambda x, pivots: torch.linalg.lu_solve(x, pivots, x),
        "lu_unpack": torch.lu_unpack,
    }.items()
    for pivots in ([1, 9], [0, 1], [1, -9])
    if name != "linalg.ldl_solve" or Version(torch.__version__).release >= (2, 13)  # before, torch did not check them even on the CPU
}
"""Calls with pivots outside a matrix of two rows, by name. They need not raise an error, because CUDA's kernels do not check pivots."""
VALUES: dict[str, _Call] = {
    **{
        f"{name} of {value}": lambda x, call=call, value=value: call(x, value)  # type: ignore[misc]
        for name, call in {
            "bernoulli": lambda x, value: torch.bernoulli(_values(x, 0.5, value)),
            "bernoulli of 10,000": lambda x, value: torch.bernoulli(_uniform(x, value)),
            "bernoulli_": lambda x, value: x[:2].bernoulli_(_values(x, 0.5, value)),
        }.items()
        for value in (1.5, -0.5, float("nan"))
    },
    **{
        f"multinomial of {value}": lambda x, value=value: torch.multinomial(_values(x, 0.5, value), 1)  # type: ignore[misc]
        for value in (-0.5, float("nan"), float("inf"))
    },
    "multinomial of zeros": lambda x: torch.multinomial(x * 0, 1),
    "multinomial of two rows": lambda x: torch.multinomial(_values(x, 0.5, 0.5, 0.5, -0.5).view(2, 2), 1),
    "multinomial with replacement": lambda x: torch.multinomial(_values(x, 0.5, -0.5), 3, replacement=True),
    "multinomial of 10,000": lambda x: torch.multinomial(_uniform(x, -0.5), 1),
    "normal of tensors": lambda x: torch.normal(x, _values(x, 1.0, 1.0, 1.0, -1.0)),
    "normal of 10,000": lambda x: torch.normal(0.0, _uniform(x, -0.5)),
    "poisson": lambda x: torch.poisson(_values(x, 0.5, -1.0)),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0, x[:3].clone()),
    "_assert_async": lambda x: torch._assert_async(x[0] < 0),
}
"""Calls with tensors that contain a probability, a deviation, a rate or another value for which the operator is not defined, by name."""


def check_values(subject: Subject, kind: str) -> None:
    """Check that operators raise an error if a tensor contains an index that is out of range, or another value that they refuse.

    The calls run in a new process. If an error makes the device unusable there, or ends the process, the remaining calls run in another new
    process. If a call raises no error or ends the process, a failure is recorded in ``subject``, and the check continues with the next
    call. The calls in ``PIVOTS`` need not raise an error.

    Args:
        subject: The plugin under test, with its device.
        kind: ``indices`` for the calls in the tables ``INDICES`` and ``PIVOTS``, or ``values`` for those in ``VALUES``.

    Raises:
        AssertionError: If one of the new processes ends without an answer, or exceeds its time limit.
        NotSupported: If the device type is ``xla``: XLA clamps indices, and has no errors that depend on the values of a tensor.
    """
    if subject.device_type == "xla":
        raise NotSupported("XLA has no errors that depend on the values of a tensor")
    index = subject.devices.index(subject.device)
    remaining = list(_calls(kind))
    while remaining:
        request = subprocess_checks.about(subject.record) | {"kind": kind, "calls": remaining, "index": index}
        answers: dict[str, str] = subprocess_checks.ask(__name__, request, 60.0)
        for name, answer in answers.items():
            with subject.sample(name, {"name": name}):
                assert answer != "no error" or name in PIVOTS, f"{name}: an invalid value in a tensor did not raise an error"
                assert answer != _ABORTED, f"{name}: an invalid value in a tensor ended the process"
        remaining = remaining[len(answers) :]


def _calls(kind: str) -> dict[str, _Call]:
    return {"indices": INDICES | PIVOTS, "values": VALUES}[kind]


def main() -> None:
    """Make the calls that are named in the JSON request on standard input, until a call leaves the device unusable. Print the results.

    This function runs in the child process.
    """
    request, record = subprocess_checks.received()
    from accelkit.discovery import loading

    cls = loading.load_class(record)
    accelerator: Accelerator = loading.instantiate(cls, record)
    accelerator.load()
    device = accelerator.get_parallel_devices(list(range(accelerator.auto_device_count())))[request["index"]]
    accelerator.setup_device(device)
    answers: dict[str, str] = {}
    calls = _calls(request["kind"])
    for name in request["calls"]:
        subprocess_checks.answer(answers | {name: _ABORTED})
        sys.stdout.flush()
        try:
            x = torch.ones(12, device=device)[:4]  # the memory behind x belongs to the same tensor, so reading it goes unnoticed
            calls[name](x)
            accelerator.synchronize(device)
            x.cpu()
            answers[name] = "no error"
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {error}"
            if not _works(device):
                break
    subprocess_checks.answer(answers)


def _works(device: torch.device) -> bool:
    try:
        return bool((torch.ones(3, device=device) + 1).sum().item() == 6)
    except RuntimeError:
        return False


if __name__ == "__main__":
    main()
