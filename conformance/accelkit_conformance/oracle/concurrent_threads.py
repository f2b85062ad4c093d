"""Programs that several threads run at the same time."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.device_streams import make_stream, on_stream
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_NUM_THREADS = 4
_NUM_ROUNDS = 12


def _gradient(device: Any, number: int) -> Any:
    x = torch.linspace(-1, number, 60, device=device).view(10, 6).requires_grad_()
    torch.nn.functional.layer_norm(x.tanh() @ x.t(), (10,)).square().mean().backward()
    return x.grad


def _freed(device: Any, number: int) -> Any:
    blocks = [torch.full((1000 * size,), float(number), device=device) for size in (1, 7, 3, 90)]
    del blocks[1], blocks[0]
    return torch.stack([block[-1] for block in [*blocks, torch.full((7000,), number + 1.0, device=device)]])


PROGRAMS: dict[str, Callable[[Any, int], Any]] = {
    "factories": lambda device, number: torch.linspace(0, number, 64, device=device).sqrt() + torch.full((64,), 2.0, device=device),
    "pointwise": lambda device, number: torch.arange(1.0, number + 30, device=device).log().sin().exp().tanh().sigmoid(),
    "products": lambda device, number: torch.full((17, 20 + number), 0.5, device=device) @ torch.ones(20 + number, 9, device=device),
    "reductions": lambda device, number: torch.linspace(-number, 3, 600, device=device).view(20, 30).softmax(-1).cumsum(0).amax(1),
    "layers": lambda device, number: torch.nn.functional.conv1d(
        torch.ones(1, 3, 20 + number, device=device), torch.ones(4, 3, 3, device=device)
    ),
    "nonzero": lambda device, number: torch.linspace(-number, 1, 64, device=device).relu().nonzero(),
    "a mask": lambda device, number: (x := torch.linspace(-number, 1, 64, device=device))[x < 0],
    "sort": lambda device, number: torch.linspace(0, number, 90, device=device).sin().sort().values,
    "indices": lambda device, number: torch.linspace(0, 9, 90, device=device)[torch.arange(number + 2, device=device) * 7],
    "item": lambda device, number: [torch.full((), float(number + place), device=device).item() for place in range(9)],
    "copies": lambda device, number: torch.full((3000,), float(number)).to(device).cpu().to(device, non_blocking=True) * 2,
    "random numbers": lambda device, number: torch.rand(90, device=device, generator=torch.Generator(device=device).manual_seed(number)),
    "backward": _gradient,
    "memory": _freed,
}
"""Programs by name. Each takes a device and a positive number, and returns a tensor or numbers. Every call with the same number must give
the same results."""


def run_together(calls: list[Callable[[], Any]], barrier: threading.Barrier | None = None) -> list[Any]:
    """Run each call in a thread of its own, all at the same time, and return their results.

    Args:
        calls: The calls.
        barrier: A barrier at which the calls wait for each other. It is broken if a call raises an error.

    Raises:
        Exception: An error that a call raises.
    """
    start = threading.Barrier(len(calls))
    found: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        start.wait(30)
        try:
            found[place] = calls[place]()
        except Exception as error:
            found[place] = error
            if barrier is not None:
                barrier.abort()

    threads = [threading.Thread(target=run, args=(place,), name=f"accelkit-conformance-{place}") for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [one for one in found if isinstance(one, Exception)]
    if errors:
        raise next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
    return found


def as_numbers(result: Any) -> list[float]:
    """Return the result of a program as a list of numbers."""
    return result.detach().flatten().tolist() if isinstance(result, torch.Tensor) else result  # type: ignore[no-any-return]


def check_threads(subject: Subject) -> None:
    """Run the programs in several threads at the same time, and compare the results with those of the same programs in the main thread.

    Each thread runs the programs several times, with a number of its own, in an order of its own, on its own stream if the device has
    streams. Programs for which the device lacks a dtype or random states are left out.

    Raises:
        AssertionError: If a result differs, or if more memory is allocated after the last round than after the first.
    """
    cpu, device = torch.device("cpu"), subject.device
    has_streams, is_counted = subject.capabilities.can("streams"), subject.capabilities.can("memory_statistics")
    programs = {
        name: program
        for name, program in PROGRAMS.items()
        if not lacking_dtypes(subject, lambda program=program: program(cpu, 1))  # type: ignore[misc]
        and (name != "random numbers" or subject.capabilities.can("random_state"))
    }
    expected = {(name, number): as_numbers(programs[name](device, number)) for name in programs for number in range(1, _NUM_THREADS + 1)}

    levels: list[float] = []
    barrier = threading.Barrier(_NUM_THREADS, lambda: levels.append(subject.allocated_before() if is_counted else 0))

    def run(number: int) -> None:
        subject.accelerator.setup_device(device)
        names = [*programs]
        order = names[3 * number % len(names) :] + names[: 3 * number % len(names)]
        # Each thread keeps its stream, because a device may keep a workspace for each stream.
        with on_stream(subject, make_stream(subject)) if has_streams else contextlib.nullcontext():
            for _ in range(_NUM_ROUNDS):
                for name in order:
                    check_equal(as_numbers(programs[name](device, number)), expected[name, number], name)
                barrier.wait(60)

    run_together([functools.partial(run, number) for number in range(1, _NUM_THREADS + 1)], barrier)
    left = (subject.allocated_after(levels[0]) if levels[-1] > levels[0] else levels[-1]) - levels[0]
    assert left <= 0, f"{left:.0f} more bytes are allocated after {_NUM_ROUNDS - 1} more rounds of work in {_NUM_THREADS} threads"


def check_equal(found: list[float], expected: list[float], name: str) -> None:
    """Check that a program in one of several threads gave the numbers that it gives alone, up to rounding errors."""
    right, mine = torch.tensor(expected, dtype=torch.float64), torch.tensor(found, dtype=torch.float64)
    assert mine.shape == right.shape, (
        f"{name}, in a thread while others ran, gave results with {mine.numel()} elements, not {right.numel()}"
    )
    error = float((mine - right).abs().max()) if right.numel() else 0.0
    assert error <= 1e-4 * max(1.0, float(right.abs().max())), (
        f"{name}, in a thread while others ran, gave results that are off by {error:g}"
    )
