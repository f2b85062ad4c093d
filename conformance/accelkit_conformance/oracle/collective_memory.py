"""Check that the memory of an asynchronous collective's tensors is not reused too early."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from accelkit_conformance.oracle.device_streams import make_stream, num_slow_products, on_stream, slow_product

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LENGTH = 1 << 18


def check_memory(subject: Subject) -> None:
    """Check asynchronous collectives. Before or after the wait, the input is freed and another tensor of the same size is filled.

    The last rank starts late, because its device is busy. The calls are made on the current stream and, if the device has streams, on
    another stream. Failures are recorded in the subject.
    """
    streams: dict[str, Any] = {"the current stream": contextlib.nullcontext()}
    if subject.capabilities["streams"] != "none" and subject.device_type != "cpu":
        streams["another stream"] = on_stream(subject, make_stream(subject))
    for where, stream in streams.items():
        for collective in ("all_reduce", "all_gather_into_tensor", "all_to_all_single"):
            for is_freed_early in (True, False):
                when = "before" if is_freed_early else "after"
                with subject.sample(f"{collective} on {where}, freed {when} the wait", {"collective": collective}), stream:
                    _check(subject, collective, is_freed_early=is_freed_early)
                    subject.synchronize()


def _check(subject: Subject, collective: str, *, is_freed_early: bool) -> None:
    n, device = subject.world_size, subject.device
    if subject.rank == n - 1:
        a = torch.ones(512, 512, device=device)
        for _ in range(num_slow_products(subject)):
            a = slow_product(a)
    x = torch.full((n * _LENGTH,), subject.rank + 1.0, device=device)
    result = torch.zeros((n * len(x) if collective == "all_gather_into_tensor" else len(x),), device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        given = (x,) if collective == "all_reduce" else (result, x)
        work: Any = getattr(dist, collective)(*given, async_op=True)
    size = x.shape
    if not is_freed_early:
        work.wait()
    del given, x
    other = torch.full(size, 7.0, device=device)
    if is_freed_early:
        work.wait()
    del work
    assert bool((other.cpu() == 7).all()), "the collective wrote to the memory of another tensor"
    if collective != "all_reduce":
        expected = torch.arange(1.0, n + 1).repeat_interleave(len(result) // n)
        assert torch.equal(result.cpu(), expected), "the collective read an input after its memory was used for another tensor"
