"""What each rank does in test_verification.py: ``verification_program.py ACCELERATOR CASE...`` under ACCELKIT_VERIFY_COLLECTIVES."""

from __future__ import annotations

import os
import sys
import time

import torch

if "disagree" in sys.argv and os.environ["RANK"] == "1":
    os.environ["ACCELKIT_VERIFY_COLLECTIVES"] = "first"

from member import everyone, mine, raises, rank, rt, run, same, size

import accelkit
from accelkit.runtime.collectives import communicator

MODE = os.environ.get("ACCELKIT_VERIFY_COLLECTIVES", "always")
LARGE = 1000  # more elements than a packet holds


def large():
    return mine([float(rank + 1)] * LARGE)


def total(*, depth=0):
    """Each rank makes the call from a line of its own, and some of them recursively."""
    if depth:
        return total(depth=depth - 1)
    if rank:
        return rt.reduce(large())
    return rt.reduce(large())


def alike():
    """A correct program gets the same results in every mode, however often and from wherever it calls."""
    for number in range(120):
        same(total(depth=number % 3), torch.full((LARGE,), float(sum(everyone) + size)))
        if number % 50 == rank or number % 50 in everyone:  # a call on one line of one rank, on another line of the others
            same(rt.gather(large())[::LARGE], [other + 1.0 for other in everyone])
    x = torch.ones(LARGE, device=rt.device, requires_grad=True)
    for _ in range(5):
        rt.gather(x, sync_grads=True).sum().backward()
    assert x.grad is not None
    assert x.grad[0] == 5.0 * size
    rt.wait_for_everyone()


def absent():
    """A rank does not come to the seventh call."""
    for _ in range(5):
        rt.reduce(large())
    rt.gather(large())
    if rank == 1:
        time.sleep(float(os.environ["ACCELKIT_TIMEOUT"]) + 4)
        return
    rt.reduce(large())


def apart():
    """Rank 1 verifies a call that is new to it. The others make one that they know, and do not verify it."""
    for _ in range(5):
        rt.gather(torch.full((128,), rank, dtype=torch.uint8))  # as many bytes as a packet has
    if rank == 1:
        rt.gather(torch.full((64,), rank, dtype=torch.int16))
    else:
        rt.gather(torch.full((128,), rank, dtype=torch.uint8))
    raise SystemExit("a wrong result")


def late():
    """Two known calls are exchanged for each other. Unverified, they go through; the next packet tells."""
    for _ in range(5):
        rt.reduce(torch.full((LARGE,), rank), "sum")
        rt.reduce(torch.full((LARGE,), rank), "max")
    swapped = lambda: rt.reduce(torch.full((LARGE,), rank), "max" if rank else "sum")  # noqa: E731
    if MODE == "always":
        raises(accelkit.CollectiveError, swapped, "reduce (max)", "reduce (sum)")
        return
    swapped()
    text = raises(accelkit.CollectiveError, rt.wait_for_everyone, "reduce (max)", "reduce (sum)", "ACCELKIT_VERIFY_COLLECTIVES=always")
    print(f"accelkit.errors.CollectiveError: {text}")
    rt.wait_for_everyone()  # all are together again


def in_rounds():
    """From here on, the processes compare their calls as in a large group."""
    communicator.SMALL_GROUP = 1


def disagree():
    _ = rt.device


if __name__ == "__main__":
    run(globals())
