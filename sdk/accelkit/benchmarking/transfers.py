"""Measurements of launch latency, copies, and the overlap of copies and computation."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from accelkit.benchmarking.case import MEMORY, PEER, TO_DEVICE, TO_HOST, Case, NotSupportedError, Target, size_as_text
from accelkit.benchmarking.timing import Plan

if TYPE_CHECKING:
    import torch

_KIB, _MIB = 1 << 10, 1 << 20
_QUICK, _FULL = (4 * _KIB, _MIB, 8 * _MIB), (4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB, 256 * _MIB)
_OVERLAP_BYTES = 16 * _MIB


def cases(is_quick: bool) -> list[Case]:
    """Return the cases that measure launch latency, copies and overlap. If ``is_quick``, fewer copy sizes are measured, up to 8 MiB."""
    found = [Case("launch.add", "us", _add), Case("launch.item", "us", _item)]
    for size in _QUICK if is_quick else _FULL:
        text = size_as_text(size)
        for direction, link in (("host_to_device", TO_DEVICE), ("device_to_host", TO_HOST)):
            for kind in ("", "_pinned"):
                prepare = functools.partial(_copy, size=size, is_pinned=bool(kind), is_upload=link == TO_DEVICE)
                needs = ("pinned_memory",) if kind else ()
                name = f"copy.{direction}{kind}.{text}"
                found.append(Case(name, "GB/s", prepare, size, {link: size}, link, needs, runs_on_cpu=not kind))
        within = functools.partial(_copy_within, size=size)
        found.append(Case(f"copy.within.{text}", "GB/s", within, size, {MEMORY: 2 * size}, MEMORY))
        peer = functools.partial(_copy_from_peer, size=size)
        found.append(Case(f"copy.peer.{text}", "GB/s", work={PEER: size}, amount=size, peak_of=PEER, measure=peer, runs_on_cpu=False))
    return [*found, Case("overlap.copy_and_matmul", "%", needs=("streams", "pinned_memory"), measure=_overlap, runs_on_cpu=False)]


def _add(target: Target) -> Callable[[], object]:
    import torch

    x = torch.ones(1, device=target.device)
    return lambda: x + x


def _item(target: Target) -> Callable[[], object]:
    import torch

    return torch.ones(1, device=target.device).item


def _copy(target: Target, *, size: int, is_pinned: bool, is_upload: bool) -> Callable[[], object]:
    import torch

    host = torch.ones(size, dtype=torch.uint8)
    if is_pinned:
        host = _pinned(host)
    there = torch.ones(size, dtype=torch.uint8, device=target.device)
    to, source = (there, host) if is_upload else (host, there)
    return lambda: to.copy_(source, non_blocking=is_pinned)


def _pinned(host: torch.Tensor) -> torch.Tensor:
    pinned = host.pin_memory()
    if not pinned.is_pinned():
        raise NotSupportedError("torch does not pin memory for this device")
    return pinned


def _copy_within(target: Target, *, size: int) -> Callable[[], object]:
    import torch

    source = torch.ones(size, dtype=torch.uint8, device=target.device)
    to = torch.empty_like(source)
    return lambda: to.copy_(source)


def _copy_from_peer(target: Target, plan: Plan, *, size: int) -> list[float]:
    """Measure copies of ``size`` bytes from the target's peer to the target, and return the samples in GB/s."""
    import torch

    peer = target.peer
    if peer is None:
        raise NotSupportedError("there is only one device")
    source = torch.ones(size, dtype=torch.uint8, device=peer.device)
    to = torch.empty(size, dtype=torch.uint8, device=target.device)

    def synchronize() -> None:
        peer.synchronize()
        target.synchronize()

    return [size / seconds / 1e9 for seconds in plan.seconds(lambda: to.copy_(source), synchronize)]


def _overlap(target: Target, plan: Plan) -> list[float]:
    """Measure how much matmuls overlap with a copy to the device. Return the samples in percent.

    The overlap is the part of the shorter operation that runs during the longer one and therefore takes no extra time. Each sample is ``100
    * (copy + matmuls - both) / min(copy, matmuls)``. ``copy`` and ``matmuls`` are the times of the two when they run separately, and
    ``both`` is the time when they run together on different streams. There are at most 1000 matmuls. Within this limit, their number is
    chosen so that they take about as long as the copy. A sample may be slightly less than 0 or more than 100, because the times are noisy.
    """
    import torch

    upload = _copy(target, size=_OVERLAP_BYTES, is_pinned=True, is_upload=True)
    computing = torch.ones(256, 256, device=target.device)
    side = torch.Stream(target.device)

    def compute() -> None:
        for _ in range(repeat):
            torch.mm(computing, computing)

    def copy() -> None:
        with side:
            upload()

    def both() -> None:
        copy()
        compute()

    once = Plan(rounds=3, round_seconds=0, most_seconds=1, longest_call=1)
    repeat = 1
    time_of_copy = statistics.median(once.seconds(copy, target.synchronize))
    time_of_matmul = statistics.median(once.seconds(compute, target.synchronize))
    repeat = max(1, min(1000, round(time_of_copy / time_of_matmul)))
    samples = []
    for _ in range(plan.rounds):
        first, second, together = (min(once.seconds(call, target.synchronize)) for call in (copy, compute, both))
        samples.append((first + second - together) / min(first, second) * 100)
    return samples
