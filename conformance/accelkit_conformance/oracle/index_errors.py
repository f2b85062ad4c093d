"""Calls with an index out of range, which must raise an error.

``check_indices`` runs this module as a program. The program makes the calls in a new process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit import PluginRecord
from accelkit_conformance import subprocess_checks
from accelkit_conformance.results import NotSupported
from accelkit_conformance.subject import Subject

if TYPE_CHECKING:
    from accelkit import Accelerator

_Call = Callable[[torch.Tensor], object]


def _index(x: torch.Tensor, value: int) -> torch.Tensor:
    return torch.tensor([0, value], device=x.device)


_BEYOND: dict[str, tuple[int, Callable[[torch.Tensor, torch.Tensor], object]]] = {
    "x[index]": (4, lambda x, index: x[index]),
    "x[index] = value": (4, lambda x, index: x.__setitem__(index, 1.0)),
    "index_select": (4, lambda x, index: x.index_select(0, index)),
    "gather": (4, lambda x, index: x.gather(0, index)),
    "take": (4, lambda x, index: x.take(index)),
    "embedding": (2, lambda x, index: F.embedding(index, x.view(2, 2))),
    "scatter_": (4, lambda x, index: x.scatter_(0, index, 1.0)),
    "scatter_ of a tensor": (4, lambda x, index: x.scatter_(0, index, torch.ones_like(x))),
    "scatter_add_": (4, lambda x, index: x.scatter_add_(0, index, torch.ones_like(x))),
    "scatter_reduce_": (4, lambda x, index: x.scatter_reduce_(0, index, torch.ones_like(x), "amax")),
    "index_add_": (4, lambda x, index: x.index_add_(0, index, torch.ones(2, device=x.device))),
    "index_copy_": (4, lambda x, index: x.index_copy_(0, index, torch.ones(2, device=x.device))),
    "index_fill_": (4, lambda x, index: x.index_fill_(0, index, 1.0)),
    "index_put_, accumulating": (4, lambda x, index: x.index_put_((index,), torch.ones(2, device=x.device), accumulate=True)),
    "put_": (4, lambda x, index: x.put_(index, torch.ones(2, device=x.device))),
    "index_reduce_": (4, lambda x, index: x.index_reduce_(0, index, torch.ones(2, device=x.device), "amax")),
    **{
        f"embedding_bag, {mode}": (
            2,
            lambda x, index, mode=mode: F.embedding_bag(index, x.view(2, 2), torch.tensor([0], device=x.device), mode=mode),  # type: ignore[misc]
        )
        for mode in ("sum", "mean", "max")
    },
    "embedding_bag of a matrix of indices": (2, lambda x, index: F.embedding_bag(index.view(1, 2), x.view(2, 2))),
    "nll_loss": (2, lambda x, index: F.nll_loss(x.view(2, 2), index)),
    "nll_loss of images": (2, lambda x, index: F.nll_loss(x.view(1, 2, 1, 2), index.view(1, 1, 2))),
    "nll_loss without reduction": (2, lambda x, index: F.nll_loss(x.view(2, 2), index, reduction="none")),
    "nll_loss of images, without reduction": (
        2,
        lambda x, index: F.nll_loss(x.view(1, 2, 1, 2), index.view(1, 1, 2), reduction="none"),
    ),
    "cross_entropy": (2, lambda x, index: F.cross_entropy(x.view(2, 2), index)),
    "one_hot": (3, lambda x, index: F.one_hot(index, 3)),
    "x[:, index]": (2, lambda x, index: x.view(2, 2)[:, index]),
    "gather along columns": (2, lambda x, index: x.view(2, 2).gather(1, index.view(2, 1))),
}
"""Calls with an index beyond the end of a tensor, by name: the smallest index that is out of range, and a function of a tensor of four
elements and the indices."""
_INDICES: dict[str, _Call] = {
    **{name: lambda x, call=call, length=length: call(x, _index(x, length)) for name, (length, call) in _BEYOND.items()},  # type: ignore[misc]
    "index_select of 9": lambda x: x.index_select(0, _index(x, 9)),
    "embedding of 9": lambda x: F.embedding(_index(x, 9), x.view(2, 2)),
    "x[-index]": lambda x: x[_index(x, -9)],
    "take of -9": lambda x: x.take(_index(x, -9)),
    "gather of -1": lambda x: x.gather(0, _index(x, -1)),
    "index_copy_ of -9": lambda x: x.index_copy_(0, _index(x, -9), torch.ones(2, device=x.device)),
    "embedding of -1": lambda x: F.embedding(_index(x, -1), x.view(2, 2)),
    "one_hot of -1": lambda x: F.one_hot(_index(x, -1), 3),
    "max_unpool2d": lambda x: F.max_unpool2d(x.view(1, 2, 2), _index(x, 99).repeat(2).view(1, 2, 2), 2),
    "x[index] of a slice": lambda x: x[:2][_index(x, 3)],
    "x[index] = value of a slice": lambda x: x[:2].__setitem__(_index(x, 3), 1.0),
    "index_select of a slice": lambda x: x[:2].index_select(0, _index(x, 3)),
    "index_add_ of a slice": lambda x: x[:2].index_add_(0, _index(x, 3), torch.ones(2, device=x.device)),
    "nll_loss of -1": lambda x: F.nll_loss(x.view(2, 2), _index(x, -1)),
    "scatter_ of -1": lambda x: x.scatter_(0, _index(x, -1), 1.0),
    "bincount of -1": lambda x: torch.bincount(_index(x, -1)),
    "repeat_interleave of -1": lambda x: x[:2].repeat_interleave(_index(x, -1)),
}
"""Calls with an index outside a tensor of four elements or, with ``of a slice``, outside its first two elements, by name."""


def check_indices(subject: Subject) -> None:
    """Check that operators raise an error if an index tensor contains an index that is out of range.

    The calls run in a new process. If an error makes the device unusable there, the remaining calls run in another new process. If a call
    raises no error, a failure is recorded in ``subject``, and the check continues with the next call.

    Raises:
        AssertionError: If one of the new processes ends without an answer, or exceeds its time limit.
        NotSupported: If the device type is ``xla``: XLA clamps such indices.
    """
    if subject.device_type == "xla":
        raise NotSupported("XLA clamps an index that is outside a tensor")
    index = subject.devices.index(subject.device)
    remaining = list(_INDICES)
    while remaining:
        request = subprocess_checks.about(subject.record) | {"calls": remaining, "index": index}
        answers: dict[str, str] = subprocess_checks.ask(__name__, request, 60.0)
        for name, answer in answers.items():
            with subject.sample(name, {"name": name}):
                assert answer != "no error", f"{name} with an index outside the tensor did not raise an error"
        remaining = remaining[len(answers) :]


def main() -> None:
    """Make the calls that are named in the JSON request on standard input, until a call leaves the device unusable. Print the results.

    This function runs in the child process.
    """
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    record = PluginRecord(**request["record"])
    from accelkit.discovery import loading

    cls = loading.load_class(record)
    accelerator: Accelerator = loading.instantiate(cls, record)
    accelerator.load()
    device = accelerator.get_parallel_devices(list(range(accelerator.auto_device_count())))[request["index"]]
    accelerator.setup_device(device)
    answers: dict[str, str] = {}
    for name in request["calls"]:
        try:
            x = torch.ones(12, device=device)[:4]  # the memory behind x belongs to the same tensor, so reading it goes unnoticed
            _INDICES[name](x)
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
