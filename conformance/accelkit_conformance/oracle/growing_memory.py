"""Checks that the memory of the process, and device memory that the allocator does not count, do not grow when calls are repeated."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
import torch

from accelkit_conformance.oracle.device_streams import make_event, make_stream, on_stream
from accelkit_conformance.oracle.free_memory import free_memory_functions
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_MOST_BYTES = 48 << 20
_NUM_CALLS = 1500
_ATTEMPTS = 6
_STRIDED_ROUNDS = 20_000
_STRIDED_SECONDS = 5.0
_MOST_STRIDED_BYTES = 1 << 20
_MOST_BYTES_PER_STRIDED_CALL = 48


def check_growing_memory(subject: Subject, name: str) -> None:
    """Check that memory does not keep growing when operators are called again and again.

    Args:
        subject: The plugin under test, with its device.
        name: What is new in each round: ``numbers`` or ``shapes``. For ``same_calls``, nothing is new, and more kinds of calls are made.
            ``strided_calls`` is explained at ``_check_strided_calls``.

    Raises:
        AssertionError: If, in the last two thirds of the calls, the resident memory of the process grows by 48 MiB or more, or if the
        device's used memory grows by 48 MiB or more in this series of calls and in each of five further series. One series is not enough
        for the device's memory, because other programs may use it.
    """
    if name == "strided_calls":
        _check_strided_calls(subject)
        return
    call = {"numbers": _call_with_numbers, "shapes": _call_with_shapes, "same_calls": _same_calls}[name](subject)
    meters = _meters(subject)
    for number in range(_NUM_CALLS // 3):
        call(number)
    suspected = set(meters)
    for attempt in range(_ATTEMPTS):
        before = {what: meters[what]() for what in suspected}
        for number in range(_NUM_CALLS // 3, _NUM_CALLS):
            call(number + attempt * _NUM_CALLS)
        growth = {what: meters[what]() - level for what, level in before.items()}
        grown = growth.get(_PROCESS, 0)
        assert grown < _MOST_BYTES, f"in the last two thirds of {_NUM_CALLS} rounds of calls, the process grew by {grown >> 20} MiB"
        suspected = {what for what, grown in growth.items() if grown >= _MOST_BYTES}
        if not suspected:
            return
    assert not suspected, (
        f"in 1000 rounds of calls, {', '.join(sorted(suspected))} grew by {_MOST_BYTES >> 20} MiB or more, {_ATTEMPTS} times in a row"
    )


def _check_strided_calls(subject: Subject) -> None:
    """Check that operators on strided views of tiny tensors do not each leave a small object in the memory of the process.

    Each round adds two transposed matrices, adds up every other column of a matrix, and multiplies a transposed matrix by another matrix. A
    series has 20,000 rounds, or as many as take about five seconds. Growth in a single series is not a failure, because allocators may get
    new memory at any time.

    Raises:
        AssertionError: If, in each of six series, the resident memory of the process grows by 1 MiB plus 48 bytes per call, or by more.
    """
    x, y, process = torch.rand(4, 4).to(subject.device), torch.rand(4, 4).to(subject.device), psutil.Process()

    def count(most_rounds: int) -> int:
        """Make the calls of a series, and return the number of calls."""
        end = time.monotonic() + _STRIDED_SECONDS
        for number in range(1, most_rounds + 1):
            x.t() + y.t()
            x[:, ::2].sum()
            x.t() @ y
            if number % 50 == 0:
                subject.synchronize()
                if time.monotonic() > end:
                    break
        return 3 * number

    count(_STRIDED_ROUNDS // 4)  # allocators get most of their memory at first
    for _ in range(_ATTEMPTS):
        before = process.memory_info().rss
        num_calls = count(_STRIDED_ROUNDS)
        growth = process.memory_info().rss - before
        if growth < _MOST_STRIDED_BYTES + _MOST_BYTES_PER_STRIDED_CALL * num_calls:
            return
    raise AssertionError(
        f"{num_calls} calls with strided tensors increased the resident memory of the process by {growth >> 10} KiB, which is "
        f"{growth // num_calls} bytes per call, after {_ATTEMPTS - 1} other series had increased it, too"
    )


_PROCESS = "the resident memory of the process"


def _meters(subject: Subject) -> dict[str, Callable[[], int]]:
    """Return functions that return the number of used bytes, by the name of the memory."""

    def used(free: Callable[[], tuple[int, int]]) -> Callable[[], int]:
        def read() -> int:
            subject.synchronize()
            subject.accelerator.empty_cache()
            available, total = free()
            return total - available

        return read

    process = psutil.Process()
    meters: dict[str, Callable[[], int]] = {_PROCESS: lambda: int(process.memory_info().rss)}
    meters |= {f"the used memory that {name} reports": used(free) for name, free in free_memory_functions(subject).items()}
    if (driver := subject.optional_function("driver_allocated_memory")) is not None:  # torch.mps
        meters["the memory that the driver has allocated"] = lambda: int(driver())
    return meters


def _call_with_numbers(subject: Subject) -> Callable[[int], None]:
    x = torch.rand(3, 5, device=subject.device)

    def call(number: int) -> None:
        scalar = 1 + number / 7919
        y = x.clip(1 - scalar / 3, scalar) + scalar
        y = (y * scalar - scalar).pow(scalar).softmax(-1).add(x, alpha=scalar)
        y = torch.full((2, 2), scalar, device=subject.device) @ y[:2]
        y = torch.nn.functional.leaky_relu(y, scalar).masked_fill(y > scalar, scalar) if not subject.lacks("bool") else y
        torch.cat([y, x]).sum().item()

    return call


def _call_with_shapes(subject: Subject) -> Callable[[int], None]:
    linear, convolution, norm = torch.nn.Linear(6, 6), torch.nn.Conv1d(6, 6, 3, padding=1), torch.nn.LayerNorm(6)
    layers = torch.nn.ModuleList([linear, convolution, norm]).to(subject.device)
    parameters = list(layers.parameters())

    def call(number: int) -> None:
        x = torch.ones(1, number + 1, 6, device=subject.device)
        y = norm(linear(x) + convolution(x.transpose(1, 2)).transpose(1, 2))
        y = torch.cat([y.softmax(-1), torch.nn.functional.scaled_dot_product_attention(y[:, :1], y, y), x], 1)
        y = y.sum(1) + (x[0].t() @ x[0]).sum()
        torch.autograd.grad(y.sum(), parameters)

    return call


def _stepped(module: torch.nn.Module, x: torch.Tensor) -> None:
    result = module(x)
    (result[0] if isinstance(result, tuple) else result).sum().backward()
    module.zero_grad()


def _same_calls(subject: Subject) -> Callable[[int], None]:
    """Return a function that makes the next four of many calls. The arguments of these calls are always the same."""
    device = subject.device
    modules: dict[str, tuple[torch.nn.Module, torch.Tensor]] = {
        "LSTM": (torch.nn.LSTM(5, 6, num_layers=2), torch.ones(3, 2, 5)),
        "GRU": (torch.nn.GRU(5, 6), torch.ones(3, 2, 5)),
        "convolution and pooling": (torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.MaxPool2d(2)), torch.ones(1, 2, 9, 9)),
        "BatchNorm": (torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.AvgPool1d(2)), torch.ones(3, 4, 6)),
        "attention": (torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1), torch.ones(3, 2, 8)),
    }
    calls: dict[str, Callable[[Any], Any]] = {
        "unique": lambda x: x.unique(),
        "nonzero": lambda x: x.nonzero(),
        "a mask": lambda x: x[x > 3],
        "sort": lambda x: x.sort(),
        "topk": lambda x: x.topk(3),
        "index_put": lambda x: x.clone().index_put_((torch.tensor([1, 2], device=x.device),), x[:2], accumulate=True),
        "cumsum": lambda x: x.cumsum(0),
        "solve": lambda x: torch.linalg.solve(torch.eye(4, device=x.device) * 2, x[:4]),
        "multinomial": lambda x: torch.rand(9, device=x.device).multinomial(3),
        "fft": lambda x: torch.fft.rfft(x).real,
        "foreach": lambda x: torch._foreach_add([x, x, x[:3]], 1.0),
        "item": lambda x: x[3].item(),
        "to the host": lambda x: x.to("cpu", non_blocking=True),
        "from the host": lambda x: torch.ones(300).to(x.device, non_blocking=True),
        "a block": lambda x: x.new_empty(1 << 18),
    }
    sample = torch.arange(40.0)
    possible = [call for call in calls.values() if not lacking_dtypes(subject, functools.partial(call, sample))]
    repeated: list[Callable[[], Any]] = []
    for one in (functools.partial(call, sample.to(device)) for call in possible):
        with contextlib.suppress(NotImplementedError):  # tests of operators report this
            one()
            repeated.append(one)
    repeated += [functools.partial(_stepped, module.to(device), x.to(device)) for module, x in modules.values()]
    repeated.append(subject.accelerator.empty_cache)
    if subject.capabilities.can("events"):
        repeated.append(lambda: make_event(subject).record())
    if subject.capabilities.can("streams"):
        repeated.append(lambda: _used(subject))
    if subject.capabilities.can("pinned_memory"):
        repeated.append(lambda: torch.ones(300).pin_memory().to(device, non_blocking=True))
    turns = itertools.cycle(repeated)

    def call(number: int) -> None:
        for _ in range(4):
            next(turns)()
        if number % 50 == 0:
            subject.synchronize()

    return call


def _used(subject: Subject) -> None:
    stream = make_stream(subject)
    with on_stream(subject, stream):
        torch.ones(30, device=subject.device).sum()
    stream.synchronize()
