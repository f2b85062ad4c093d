"""Calls and training steps that must not increase the amount of memory allocated on the device when they are repeated."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.aliases import DLPACK
from accelkit_conformance.oracle.device_streams import make_stream, on_stream
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.places import run_at
from accelkit_conformance.oracle.saved_files import saved

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Call = Callable[[torch.Tensor], Any]


def _backward(x: torch.Tensor) -> Any:
    leaf = x.detach().clone().requires_grad_()
    leaf.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    (leaf * leaf).exp().sum().backward(create_graph=False)  # type: ignore[no-untyped-call]
    return torch.autograd.grad((leaf * leaf).sum(), leaf, create_graph=True)[0].sum().backward()  # type: ignore[no-untyped-call]


def _assigned(x: torch.Tensor) -> None:
    y = x.clone()
    y[3] = 4
    y[1:9] = torch.arange(8.0)
    y[torch.tensor([1, 2])] = 9
    y[y > 5] = 0


def _exchanged(x: torch.Tensor) -> None:
    for place in (slice(None), slice(3, 9), slice(0), slice(None, None, 2), 4):
        for exchange in DLPACK.values():
            with contextlib.suppress(RuntimeError, BufferError, ValueError, NotImplementedError):  # the device does not support DLPack
                exchange(x.clone()[place])  # the memory of the clone must live as long as the last view


_CALLS: dict[str, _Call] = {
    "to the host": lambda x: x.cpu(),
    "to the host, not blocking": lambda x: x.to("cpu", non_blocking=True),
    "to the device": lambda x: torch.ones(5000).to(x.device),
    "to the device, not blocking": lambda x: torch.ones(5000).to(x.device, non_blocking=True),
    "a strided copy to the host": lambda x: torch.ones(2500).copy_(x[::2]),
    "a strided copy to the device": lambda x: x.clone()[::2].copy_(torch.ones(5000)[::2]),
    "a conversion to the host": lambda x: x.to("cpu", torch.int32),
    "a conversion to the device": lambda x: torch.ones(5000, dtype=torch.int32).to(x.device, torch.float32),
    "a conversion on the device": lambda x: x.to(torch.int32),
    "item": lambda x: [x[number].item() for number in range(5)],
    "tolist": lambda x: x[:50].tolist(),
    "printing": lambda x: f"{x[:9]} {x[3]:.2f}",
    "assignments": _assigned,
    "new tensors": lambda x: [torch.tensor([1.0, 2.0], device=x.device), torch.full((9,), 3.0, device=x.device), x.new_zeros(7)],
    "random numbers": lambda x: [torch.rand(900, device=x.device), x.clone().normal_(), torch.nn.functional.dropout(x)],
    "a generator": lambda x: torch.rand(99, device=x.device, generator=torch.Generator(device=x.device).manual_seed(1)),
    "saving and loading": lambda x: torch.load(saved({"x": x})),
    "a deep copy": copy.deepcopy,
    "backward passes with hooks": _backward,
    "a storage that grows": lambda x: x.clone().resize_(9000),
    "moving a module": lambda x: torch.nn.Linear(30, 30).to(x.device).cpu().to(x.device),
    "an optimizer": lambda x: torch.optim.Adam([torch.nn.Parameter(x.clone())]).zero_grad(),
    "DLPack": _exchanged,
    "out= that grows": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
}


def check_calls(subject: Subject) -> None:
    """Make several calls four times each, and check that the number of allocated bytes does not grow after the first time.

    Raises:
        AssertionError: If the number grows.
    """
    calls: dict[str, _Call] = {
        name: call
        for name, call in _CALLS.items()
        if not lacking_dtypes(subject, lambda call=call: call(torch.ones(5000)))  # type: ignore[misc]
    }
    calls["another thread"] = lambda x: run_at(subject, "another thread", subject.device, lambda: [(x * 2).sum().item()])
    if subject.capabilities.can("pinned_memory"):
        calls["pinned memory"] = lambda x: torch.ones(5000).pin_memory().to(x.device, non_blocking=True)
        calls["to pinned memory"] = lambda x: torch.empty(5000).pin_memory().copy_(x, non_blocking=True)
    if subject.capabilities.can("streams"):
        calls["another stream"] = lambda x: run_at(subject, "another stream", subject.device, lambda: [(x * 2).sum().item()])
        calls["record_stream"] = lambda x: _recorded(subject, x)
    if subject.capabilities.can("numbered_devices") and len(subject.devices) > 1:
        calls["another device and back"] = lambda x: x.to(subject.second_device()).to(x.device)
    x = torch.ones(5000, device=subject.device)
    for name, call in calls.items():
        with subject.sample(name, {"name": name}):
            levels = []
            for _ in range(4):
                call(x)
                subject.synchronize()
                levels.append(subject.allocated())
            if levels[-1] > levels[0]:
                levels.append(subject.allocated_after(levels[0]))  # collecting garbage is slow
            growth = levels[-1] - levels[0]
            assert growth <= 0, f"{growth:.0f} more bytes are allocated after three more calls ({name})"


def _recorded(subject: Subject, x: torch.Tensor) -> None:
    stream = make_stream(subject)
    block = x.clone()
    subject.synchronize()
    with on_stream(subject, stream):
        block.sum()
    block.record_stream(stream)
    del block
    stream.synchronize()
    torch.ones(5000, device=subject.device)


def check_training(subject: Subject) -> None:
    """Check that the number of allocated bytes does not grow from the 21st to the 200th training step.

    Raises:
        AssertionError: If the number grows.
    """
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)).to(
        subject.device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    levels = []
    for step in range(200):
        loss = model(torch.randn(8, 16, device=subject.device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss
        if step >= 20:
            levels.append(subject.allocated())
    if levels[-1] > levels[0]:
        levels.append(subject.allocated_after(levels[0]))  # collecting garbage is slow
    assert levels[-1] <= levels[0], f"{levels[-1] - levels[0]:.0f} more bytes are allocated after {len(levels)} steps"
